"""keysift train, runs, sweep and demo --text."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.cli.main import _main
from keysift.cli.verbs import runs
from keysift.cli.verbs.sweep import Args as sweep_args
from keysift.cli.verbs.sweep import run as sweep_verb
from keysift.cli.verbs.train import defaults
from keysift.core.errors import RangeError
from keysift.models.architecture import MultiscreenArch
from keysift.models.generate import Generation, Request
from keysift.models.language_model import count_parameters
from keysift.models.presets import PRESETS
from keysift.models.registry import build_meta
from keysift.runs.metrics import read
from keysift.runs.summary import summary
from keysift.sweep.plan import plan_runs
from keysift.train.config import TrainConfig, resolve
from keysift.train.init import model_config
from keysift.train.monitor import open_tracker
from keysift.train.settings import apply, read_toml
from tests.refusals import refuses
from tests.train.conftest import cache, corpus  # noqa: F401

RECIPES = sorted((Path(__file__).parent.parent.parent / "recipes").glob("*.toml"))
SMALL = ("--psi", "2", "--context", "16", "--batch-tokens", "64", "--sample-tokens", "4", "--val-sequences", "2")


def call(*words: object) -> None:
    assert _main([str(word) for word in words]) == 0


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert _main([str(word) for word in words]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_train_resume_runs_and_generate(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    run = tmp_path / "runs" / "first"
    file = tmp_path / "own.toml"
    file.write_text(f'data = "{corpus}"\nsteps = 9\nsave_every = 2\n')
    call("train", "--config", file, *SMALL, "--steps", 3, "--out", run)
    text = capsys.readouterr().err
    assert re.search(r"training: multiscreen with .* in .*, 1 process$", text, re.MULTILINE)
    assert "step 1  loss" in text
    assert "left" in text
    assert "finished at step 3" in text
    call("train", "--resume", run, "--steps", 5)
    assert [line["step"] for line in read(run / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    capsys.readouterr()
    call("generate", run, "--prompt", "def ", "--max-new-tokens", 3)
    call("runs", tmp_path / "runs")
    assert "5/5" in capsys.readouterr().out
    call("runs", run, "--json")
    (record,) = json.loads(capsys.readouterr().out)
    assert record["state"] == "finished"
    assert len(record["losses"]) == 5
    (tmp_path / "runs" / "foreign").mkdir()
    (tmp_path / "runs" / "foreign" / "train.json").write_text("[]")
    call("runs", tmp_path / "runs")
    shown = capsys.readouterr()
    assert "5/5" in shown.out
    assert "skipped: " in shown.err
    with refuses("does not describe a run"):
        summary(tmp_path / "runs" / "foreign")
    call("runs", tmp_path / "nothing")
    assert "no runs in" in capsys.readouterr().out
    with refuses("own.toml is not a folder; name a folder with runs, or a run"):
        runs.run(runs.Args(folder=file))


def test_generated_tasks_train_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--psi", 2, "--batch-tokens", 64, "--steps", 1, "--val-sequences", 2)
    call("train", "--data", "recall", "--context", 32, *sizes, "--out", tmp_path / "recall")
    assert "finished at step 1" in capsys.readouterr().err


def test_dry_run_writes_nothing(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    call("train", "--data", corpus, *SMALL, "--steps", 100, "--minutes", 1, "--out", tmp_path / "run", "--dry-run")
    text, progress = capsys.readouterr()
    for word in ("parameters", "FLOPs", "tokens", "memory", "time"):
        assert word in text
    assert "timing" not in text
    assert not (tmp_path / "run").exists()
    assert progress.splitlines()[-1] == "timing three passes of 64 tokens, forward and backward"
    call("train", "--data", corpus, *SMALL, "--steps", 100, "--dry-run", "--quiet")
    assert not capsys.readouterr().err


def test_dry_run_announces_the_timing(
    corpus: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(model: object, batch: object) -> None:
        raise RangeError(capsys.readouterr().err)

    monkeypatch.setattr("keysift.train.preflight.batch_loss", slow)
    assert "timing three passes" in refused(capsys, "train", "--data", corpus, *SMALL, "--steps", 9, "--dry-run")


def test_dry_run_refuses_what_resume_refuses(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    call("train", "--data", corpus, *SMALL, "--steps", 2, "--save-every", 2, "--out", run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    call("train", "--resume", run, "--steps", 5, "--dry-run")
    assert "5, of which 2 are done" in capsys.readouterr().out
    for flags, text in (
        (("--steps", 5, "--seed", 3), "a resumed run keeps its seed"),
        (("--psi", 3, "--steps", 5), "a resumed run keeps its depth"),
        ((), "is finished: it is at step 2 of 2"),
    ):
        assert text in refused(capsys, "train", "--resume", run, *flags, "--dry-run")
    assert "--match sets the size of a new model" in refused(
        capsys, "train", "--resume", run, "--steps", 5, "--match", "transformer-8m", "--dry-run"
    )
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before, "and it writes nothing"
    model = run / "checkpoints" / "step-00000002" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    assert "is corrupt" in refused(capsys, "train", "--resume", run, "--steps", 5, "--dry-run")


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "pass --out DIRECTORY" in refused(capsys, "train", "--steps", 1)
    assert "--config takes a TOML file" in refused(capsys, "train", "--config", tmp_path / "none.toml")
    with refuses("pass --out DIRECTORY"):
        from keysift.cli.verbs.train import Args, run

        run(Args(train=TrainConfig(steps=1)))
    with refuses("--match sets the size of a new model"):
        run(Args(train=TrainConfig(steps=1), resume=tmp_path, match="transformer-8m"))
    with refuses("--resume uses the config of its run"):
        defaults(["--resume", "a", "--config=b"])
    with refuses("--config takes a TOML file"):
        defaults(["--config", str(tmp_path / "none.toml")])
    (tmp_path / "bad.toml").write_text("psi = = 6")
    with refuses("is not TOML"):
        defaults([f"--config={tmp_path / 'bad.toml'}"])
    (tmp_path / "latin.toml").write_bytes(b'sample_prompt = "\xe9"')
    with refuses("is not TOML"):
        defaults([f"--config={tmp_path / 'latin.toml'}"])
    (tmp_path / "unknown.toml").write_text("lrr = 0.1")
    with refuses("there is no setting 'lrr'; did you mean 'lr'"):
        defaults([f"--config={tmp_path / 'unknown.toml'}"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_describe_models(path: Path) -> None:
    config = read_toml(path)
    assert type(build_meta(model_config(config, 257))).__name__.lower() == config.arch


@pytest.mark.parametrize(
    ("preset", "lr"),
    [
        *((f"multiscreen-psi{psi}", 2**-4) for psi in (8, 16, 32, 48, 64)),
        *(("transformer-8m", 1e-3), ("transformer-45m", 1e-3), ("transformer-353m", 3e-4), ("transformer-1.3b", 2e-4)),
    ],
)
def test_paper_recipe_for_every_preset(preset: str, lr: float) -> None:
    """paper.toml with a preset gives the settings of section 4 of the paper."""
    paper = apply(read_toml(RECIPES[0].parent / "paper.toml"), {"preset": preset})
    assert paper.batch_tokens * (paper.steps or 0) == 2**38
    resolved = resolve(paper, PRESETS.find(preset).counts()[0])
    assert (resolved.lr, resolved.warmup, resolved.context) == (lr, 2**12, 4096)
    assert (resolved.weight_decay, resolved.clip) == ((0.0, 0.0) if paper.arch == "multiscreen" else (0.1, 1.0))


def test_small_recipes_have_equal_size_and_settings() -> None:
    first, second = (read_toml(RECIPES[0].parent / f"cpu-{name}.toml") for name in ("two-minutes", "softmax"))
    sizes = [count_parameters(build_meta(model_config(config, 257))) for config in (first, second)]
    assert sizes[1] / sizes[0] == pytest.approx(1, abs=0.1)
    assert replace(first, model=second.model) == second


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_sweep(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    command = (
        "sweep",
        "--over",
        "lr=0.01,1e30",
        "--arch",
        "transformer",
        "--out",
        tmp_path / "sweep",
        "--data",
        corpus,
    )
    sizes = ("--depth", 1, "--heads", 1, "--width", 8, "--context", 16, "--batch-tokens", 32, "--sample-tokens", 0)
    options = (
        *sizes,
        "--steps",
        6,
        "--save-every",
        3,
        "--processes",
        2,
        "--clip",
        0,
        "--warmup",
        0,
        "--val-sequences",
        2,
    )
    call(*command, *options)
    results = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [item["state"] for item in results] == ["finished", "diverged"]
    assert "polyline" in (tmp_path / "sweep" / "sweep.html").read_text()
    before = os.stat(tmp_path / "sweep" / results[0]["run"] / "metrics.jsonl").st_mtime_ns
    call(*command, *options)
    assert os.stat(tmp_path / "sweep" / results[0]["run"] / "metrics.jsonl").st_mtime_ns == before, (
        "a finished run is not repeated"
    )
    assert "processes must be at least 1" in refused(capsys, *command, *options, "--processes", 0)


def test_points_of_a_sweep() -> None:
    base = TrainConfig(steps=2)
    assert list(plan_runs(base, (), ("seed=0,1", "lr=0.5"))) == ["seed=0_lr=0.5", "seed=1_lr=0.5"]
    listed = plan_runs(base, ("psi=3 lr=0.5", "arch=transformer depth=1 heads=1 width=8"), ("seed=0,1",))
    assert [(c.arch, c.model.depth, c.lr, c.model.width, c.seed) for c in listed.values()] == [
        ("multiscreen", 3, 0.5, 9, 0),
        ("multiscreen", 3, 0.5, 9, 1),
        ("transformer", 1, None, 8, 0),
        ("transformer", 1, None, 8, 1),
    ]
    assert next(iter(plan_runs(base, ("data=a/b.txt",), ()))) == "data=a-b.txt", "a run name is a single path component"


def test_a_sweep_refuses(tmp_path: Path) -> None:
    base = TrainConfig(steps=2)
    with refuses("add --steps"):
        plan_runs(TrainConfig(minutes=1.0), (), ("seed=0",))
    for axis in ("seed", "seed=", "sead=1"):
        with refuses("a setting is name=value and an axis name=value,value"):
            plan_runs(base, (), (axis,))
    with refuses("seed=0 is listed twice"):
        plan_runs(base, (), ("seed=0,0",))
    with refuses("processes must be at least 1, got 0"):
        sweep_verb(sweep_args(over=("seed=0",), out=tmp_path, processes=0))
    with refuses("nothing to sweep over"):
        sweep_verb(sweep_args(out=tmp_path))


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_a_failed_run_does_not_stop_a_sweep(corpus: Path, tmp_path: Path) -> None:  # noqa: F811
    base = TrainConfig(
        model=MultiscreenArch.psi(2), context=16, batch_tokens=32, steps=2, sample_tokens=0, val_sequences=2
    )
    each = (f"data={tmp_path / 'nothing'}", f"data={corpus}")
    with refuses("1 of 2 runs failed .*no file matches.*; run the same command again to retry them"):
        sweep_verb(sweep_args(each=each, out=tmp_path / "sweep", train=base))
    results = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert [item["state"] for item in results] == ["failed", "finished"]
    for change, word in (({"context": 8}, "context 16, not 8"), ({"model": MultiscreenArch.psi(3)}, "depth 2, not 3")):
        with refuses(f"was made with {word}; choose another --out"):
            sweep_verb(sweep_args(each=each, out=tmp_path / "sweep", train=replace(base, **change)))
    with refuses("has trained 2 steps, more than --steps 1; raise --steps"):
        sweep_verb(sweep_args(each=each, out=tmp_path / "sweep", train=replace(base, steps=1)))
    for file in (tmp_path / "sweep").glob("*.toml"):
        file.unlink()
    with refuses("was not made by a sweep"):
        sweep_verb(sweep_args(each=each, out=tmp_path / "sweep", train=base))


def test_trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # simulates a missing package
    with refuses(r"trackio is not installed .*; pip install 'keysift\[trackio\]', or drop --track"):
        open_tracker("trackio", tmp_path, {})


@pytest.mark.slow
def test_demo_of_text_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        call("demo", "--text", "--out", tmp_path / "demo.html", "--seconds", 3)
    text = capsys.readouterr().out
    assert "untrained" in text
    assert sum(line.startswith("keysift ") for line in text.splitlines()) == 6, "three commands, twice"
    page = (tmp_path / "demo.html").read_text()
    assert "learned window of each tile" in page
    windows = page.split("learned window of each tile")[1].split("</svg>")[0]
    assert windows.count("<circle") == 36
    assert "<polyline" in page
    assert (tmp_path / "demo-run" / "model.safetensors").exists()


def test_a_pattern_of_layers_trains_and_generates(
    corpus: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From flags and from TOML, with the same losses. The caches of windowed layers stop growing."""
    sizes = ("--context", "16", "--batch-tokens", "64", "--sample-tokens", "0", "--val-sequences", "2")
    arch = ("--arch", "transformer", "--depth", 4, "--heads", 2, "--width", 16)
    pattern = ("--window", 4, 4, 4, 0, "--kept", 1, "--position", "rope", "rope", "rope", "none", "--rope-share", 0.5)
    call("train", "--data", corpus, *sizes, *arch, *pattern, "--steps", 3, "--out", tmp_path / "flags")
    file = tmp_path / "own.toml"
    file.write_text(
        'arch = "transformer"\ndepth = 4\nheads = 2\nwidth = 16\nwindow = [4, 4, 4, 0]\nkept = 1\n'
        'position = ["rope", "rope", "rope", "none"]\nrope_share = 0.5\nsteps = 3\n'
    )
    call("train", "--data", corpus, *sizes, "--config", file, "--out", tmp_path / "file")
    capsys.readouterr()
    losses = [[line["loss"] for line in read(tmp_path / run / "metrics.jsonl")] for run in ("flags", "file")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    run = keysift.open(tmp_path / "flags")
    ids = run._tokens("def return")
    generation = Generation(run.model, [Request(prompt=ids, max_new_tokens=60)])
    held = [[layer.entries["k"].shape[1] for layer in generation._cache.layers] for _ in generation]
    tokens = list(ids)
    with torch.no_grad():
        for token in generation.rows[0].tokens:
            assert int(run.model(torch.tensor([tokens]))[0, -1].argmax()) == token
            tokens.append(token)
    assert held[12][:3] == held[-1][:3]
    assert held[-1][3] > held[12][3]
    # A run without a scaling is measured with each of them.
    scalings = ("ntk:factor=4", "ntk_by_parts:factor=4", "yarn:factor=4")
    beyond = ("--rope-scalings", *scalings, "--rope-factors", 4, "--length", 64, "--documents", 1, "--json")
    call("eval", "positions", tmp_path / "flags", "--text", corpus, *beyond)
    points = json.loads(capsys.readouterr().out)["points"]
    losses_at_64 = {point["setting"]: point["nats"] for point in points if point["context"] == 64}
    assert {f"RoPE {scaling}" for scaling in scalings} < losses_at_64.keys()
    assert len(set(losses_at_64.values())) == 5, "the three, the factor, and as trained"
