"""The loop in this process: what it writes, that it learns, that it goes on exactly where it stopped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.tokenizer import load_tokenizer
from keysift.train import checkpoint, layout
from keysift.train.config import TrainConfig
from keysift.train.loop import train
from keysift.train.metrics import read
from keysift.train.run import Run
from tests.refusals import refuses


def losses(run: Path) -> list[float]:
    lines = list(read(run / "metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "each step once"
    return [line["loss"] for line in lines]


def go(config: TrainConfig | None, run: Path, **rest: Any) -> Path:
    train(config, run, show=False, **rest)
    return run


def distance(left: torch.nn.Module, right: torch.nn.Module) -> float:
    with torch.no_grad():
        return sum(float((a - b).abs().sum()) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def test_a_run_directory(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    facts = Run(run).facts()
    assert facts.config.rate == 2**-4, "the config is resolved"
    assert len(facts.stream) == 64
    session = json.loads((run / "environment.json").read_text())[0]
    assert session["versions"]["torch"] == torch.__version__
    assert session["processes"] == 1
    lines = list(read(run / "metrics.jsonl"))
    assert len(lines) == 12
    for line in lines:
        assert line["tokens"] == line["step"] * 64
        assert line["bits_per_byte"] == pytest.approx(line["loss"] / 0.6931472 / facts.bytes_per_token)
        assert 0 <= line["data_wait_share"] < 1
        assert 0 < line["share_of_peak"] < 1
        assert line["memory_bytes"] > 2**20
    assert [line["step"] for line in lines if "val_loss" in line] == [4, 8, 12]
    layer = lines[-1]["heads"][0]
    assert len(layer["window"]) == len(layer["acceptance"]) == len(layer["accepted"]) == 2
    assert all(0 <= share <= 1 for share in layer["accepted"])
    looked = [layer for line in lines for layer in line.get("heads", [])]
    assert any(share > 0 for layer in looked for share in layer["accepted"])
    assert sorted(path.name for path in (run / "samples").iterdir()) == [f"step-{n:08d}.txt" for n in (4, 8, 12)]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5, "it learns"


def test_the_folder_and_every_checkpoint_load(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    newest = keysift.load(run / "checkpoints" / "step-00000012")
    for path in (run, run / "checkpoints" / "last"):
        model = keysift.load(path)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), newest.parameters(), strict=True))
        assert load_tokenizer(path).vocab_size == 257


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"arch": "transformer", "psi": None, "depth": 1, "heads": 2, "width": 8},
        {"ema": 0.9, "isolate": True, "schedule": "cosine"},
        {"recompute": True, "clip": 0.1},
    ],
    ids=["multiscreen", "transformer", "ema and isolation", "recomputed and clipped"],
)
def test_resumed_is_uninterrupted(tiny: TrainConfig, tmp_path: Path, fields: dict[str, Any]) -> None:
    config = replace(tiny, **fields)
    whole = go(config, tmp_path / "whole")
    stopped = tmp_path / "stopped"

    class Tired(Exception):
        pass

    def leave(line: dict[str, Any]) -> None:
        if line["step"] == 6:
            raise Tired

    with pytest.raises(Tired):
        go(config, stopped, on_step=leave)
    assert len(losses(stopped)) == 6, "two steps beyond the checkpoint"
    go(None, stopped, resume=True)
    assert losses(stopped) == losses(whole)
    ours, theirs = keysift.load(stopped).state_dict(), keysift.load(whole).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_one_seed_one_run(tiny: TrainConfig, tmp_path: Path) -> None:
    first = losses(go(tiny, tmp_path / "first"))
    assert losses(go(tiny, tmp_path / "second")) == first
    assert losses(go(replace(tiny, seed=1), tmp_path / "third")) != first


def test_accumulation_changes_rounding_only(tiny: TrainConfig, tmp_path: Path) -> None:
    slow = replace(tiny, rate=1e-3)
    once = losses(go(replace(slow, micro_tokens=64), tmp_path / "once"))
    assert losses(go(replace(slow, micro_tokens=16), tmp_path / "four")) == pytest.approx(once, abs=1e-5)


def test_switches_matter(tiny: TrainConfig, tmp_path: Path) -> None:
    """Each changes the losses, or, where it must not, leaves them as they are."""
    base = losses(go(tiny, tmp_path / "base"))
    for number, fields in enumerate(
        [{"clip": 0.01}, {"weight_decay": 0.5}, {"beta2": 0.5}, {"beta1": 0.5}, {"warmup": 6}, {"isolate": True}]
    ):
        assert losses(go(replace(tiny, **fields), tmp_path / str(number))) != base, fields
    same = losses(go(replace(tiny, recompute=True), tmp_path / "recomputed"))
    assert same == pytest.approx(base, abs=1e-5)
    bf16 = losses(go(replace(tiny, precision="bf16"), tmp_path / "bf16"))
    assert bf16 != base
    assert bf16[0] == pytest.approx(base[0], abs=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # inductor's own
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_changes_rounding_only(tiny: TrainConfig, tmp_path: Path) -> None:
    slow = replace(tiny, rate=1e-3, steps=4)
    compiled = losses(go(replace(slow, compile=True), tmp_path / "compiled"))
    assert compiled == pytest.approx(losses(go(slow, tmp_path / "eager")), abs=1e-5)


def test_retention(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, every=2, keep_last=1, keep_every=6, keep_best=False), tmp_path / "run")
    assert layout.steps(run / "checkpoints") == [6, 12]
    rising = replace(tiny, every=2, keep_last=1, rate=8.0, warmup=0)
    run = go(rising, tmp_path / "rising")
    values = {line["step"]: line["val_loss"] for line in read(run / "metrics.jsonl") if "val_loss" in line}
    best = min(values, key=lambda step: values[step])
    assert layout.steps(run / "checkpoints") == sorted({best, 12})


def test_ema_is_what_is_saved(tiny: TrainConfig, tmp_path: Path) -> None:
    plain = keysift.load(go(tiny, tmp_path / "plain"))
    average = keysift.load(go(replace(tiny, ema=0.99), tmp_path / "ema"))
    start = keysift.load(go(replace(tiny, steps=1), tmp_path / "start"))
    far, near = distance(plain, start), distance(average, start)
    assert 0 < near < 0.5 * far, "the average trails behind the weights"
    assert losses(tmp_path / "plain") == losses(tmp_path / "ema"), "and does not touch them"


def test_minutes_end_a_run_and_a_resumed_session_counts_anew(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, steps=None, minutes=0.001), tmp_path / "run")
    before = len(losses(run))
    go(None, run, resume=True)
    assert len(losses(run)) > before


def test_refusals(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    with refuses("already holds a run; go on with keysift train --resume"):
        go(tiny, run)
    with refuses("is finished: it has made all 12 steps; pass more --steps"):
        go(None, run, resume=True)
    with refuses("a new run needs a config"):
        go(None, tmp_path / "other")
    with refuses("holds no run: train.json is missing"):
        go(None, tmp_path / "other", resume=True)
    with refuses("strategy ddp needs torchrun"):
        go(replace(tiny, strategy="ddp"), tmp_path / "alone")
    with refuses("device 'cuda:7' cannot be used here"):
        go(replace(tiny, device="cuda:7"), tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with refuses("cannot be written"):
        go(tiny, tmp_path / "file" / "run")
    (run / "train.json").write_text("{")
    with refuses("train.json is not JSON"):
        go(None, run, resume=True)


def test_one_trainer_at_a_time(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    other = Run(run)
    other.lock()
    with refuses("another process is training in"):
        go(replace(Run(run).facts().config, steps=14), run, resume=True)
    other.unlock()
    go(replace(Run(run).facts().config, steps=14), run, resume=True)
    assert len(losses(run)) == 14


def test_other_text_is_refused(tiny: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("00.txt", "01.txt", "02.txt"):
        (text / name).write_text((corpus / name).read_text())
    run = go(replace(tiny, data=str(text), val_fraction=0.3), tmp_path / "run")
    (text / "00.txt").write_text("something else " * 50)
    with refuses("is not what .* was trained on: its token stream has another hash"):
        go(replace(Run(run).facts().config, steps=14), run, resume=True)


def test_a_loss_that_is_no_number(tiny: TrainConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = replace(tiny, arch="transformer", psi=None, depth=1, heads=1, width=8, every=1)
    config = replace(config, warmup=0, rate=1e30, clip=0.0)
    with refuses("the loss of step .* is .* first seen in .*diagnosis.json has the details"):
        go(config, run)
    told = json.loads((run / "diagnosis.json").read_text())
    assert told["step"] == len(losses(run)) + 1
    assert len(told["sequences"]) == 4
    assert told["first_output"] or told["first_parameter"] or told["first_gradient"]
    assert told["last_good_checkpoint"] == f"step-{told['step'] - 1:08d}"
    checkpoint.verify(run / "checkpoints" / told["last_good_checkpoint"])


def test_a_disk_that_fails_between_checkpoints(tiny: TrainConfig, tmp_path: Path) -> None:
    def full(line: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    with refuses("writing in .* failed .*No space left on device.*keysift train --resume"):
        go(tiny, tmp_path / "run", on_step=full)
