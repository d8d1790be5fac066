"""Which runs a study makes, that its records replace run directories, and which files it refuses."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from evidence import __main__ as command
from evidence import run_study as driver
from evidence.records import read_records
from evidence.run_study import non_default_settings, repeat_run, run_study
from evidence.runs import plan_of, required_runs, run_score
from evidence.study import ROOT, Study, find_studies, read_study
from keysift.sweep.drive import Outcome
from tests.refusals import refuses

TINY = """
data = "recall:letters=4,values=2,queries=2"
context = 8
batch_tokens = 64
steps = 3
val_sequences = 8
log_angles = true
[study]
seeds = [0, 1]
measure = ["lengths"]
[[study.grid]]
each = ["arch=multiscreen psi=2", "arch=transformer depth=1 heads=2 width=8"]
over = ["lr=0.01,0.02"]
[page]
order = 1
title = "Tiny"
larger = "more"
[[claims]]
text = "It is better"
rule = "loss_lower"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "study.toml").write_text(TINY)
    return tmp_path / "tiny" / "study.toml"


@pytest.fixture
def study(file: Path) -> Study:
    return read_study(file.parent)


def scores(values: dict[str, float]) -> Callable[[str], float | None]:
    """Scores by the part of a name that they match."""
    return lambda name: next((score for part, score in values.items() if part in name), None)


def test_one_seed_everywhere_then_every_seed_at_the_best(study: Study) -> None:
    first = required_runs(study, lambda name: None)
    assert sorted(name.rpartition("_")[2] for name in first.choosing) == ["seed=0"] * 4
    assert not first.deciding
    both = required_runs(study, dict(zip(first.choosing, (2.0, 1.0, math.inf, 3.0), strict=True)).get)
    assert both.choosing == first.choosing
    assert list(both.deciding) == [
        "arch=multiscreen_psi=2_lr=0.02_seed=0",
        "arch=multiscreen_psi=2_lr=0.02_seed=1",
        "arch=transformer_depth=1_heads=2_width=8_lr=0.02_seed=0",
        "arch=transformer_depth=1_heads=2_width=8_lr=0.02_seed=1",
    ], "a run that diverged is never the best"
    assert both.deciding["arch=multiscreen_psi=2_lr=0.02_seed=1"].seed == 1
    assert not required_runs(study, lambda name: math.inf).deciding
    assert plan_of(study).runs == len({*both.choosing, *both.deciding}) == 6


def test_every_seed_everywhere(file: Path) -> None:
    file.write_text(TINY.replace("[study]", '[study]\nseeds_at = "all"'))
    study = read_study(file.parent)
    runs = required_runs(study, lambda name: None)
    assert len(runs.choosing) == plan_of(study).runs == 8
    assert runs.choosing == runs.deciding


def test_development_seeds_choose_and_decide_nothing(file: Path) -> None:
    file.write_text(TINY.replace("[study]", "[study]\ndevelopment_seeds = [7, 8]"))
    study = read_study(file.parent)
    losses = {"lr=0.01_seed=7": 1.0, "lr=0.01_seed=8": 4.0, "lr=0.02": 2.0}
    runs = required_runs(study, scores(losses))
    assert {run.seed for run in runs.choosing.values()} == {7, 8}
    assert {(run.seed, run.lr) for run in runs.deciding.values()} == {(0, 0.02), (1, 0.02)}, "the mean decides"
    assert plan_of(study).runs == len(runs.choosing) + len(runs.deciding) == 12
    with refuses("seeds that decide claims must be fresh"):
        replace(plan_of(study), development_seeds=(1, 2))


def test_an_optimum_at_an_edge_widens_the_rates(file: Path) -> None:
    file.write_text(TINY.replace("[study]", "[study]\nwiden = 2"))
    study = read_study(file.parent)
    falling = {"lr=0.01_": 3.0, "lr=0.02_": 2.0, "lr=0.04_": 1.0, "lr=0.08_": 0.5, "lr=0.16_": 0.1}
    assert {run.lr for run in required_runs(study, scores(falling)).choosing.values()} == {0.01, 0.02, 0.04, 0.08}
    assert {run.lr for run in required_runs(study, scores(falling)).deciding.values()} == {0.08}, "widened twice"
    rising = {"lr=0.01_": 1.0, "lr=0.005_": 2.0, "lr=0.02_": 3.0}
    runs = required_runs(study, scores(rising))
    assert {run.lr for run in runs.choosing.values()} == {0.005, 0.01, 0.02}
    assert {run.lr for run in runs.deciding.values()} == {0.01}
    assert not required_runs(study, scores({"lr=0.01_": 1.0, "lr=0.02_": 3.0})).deciding, "0.005 has no record yet"


@pytest.mark.parametrize("study", find_studies(), ids=lambda study: study.name)
def test_studies_of_the_repository(study: Study) -> None:
    assert study.claims
    if study.plan is None:
        with refuses("trains nothing: its claims are about docs/results/models.json"):
            required_runs(study, lambda name: None)
        return
    assert len(study.plan.seeds) >= 3
    records = read_records(study.records)
    runs = required_runs(study, partial(run_score, records, study.plan)).choosing
    for name in runs.keys() & records.keys():
        driver.require_same_settings(records[name], non_default_settings(runs[name]), study.records)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_records_replace_run_directories(study: Study, file: Path, tmp_path: Path) -> None:
    runs_dir, log = tmp_path / "out", list[str]()
    records, outcomes = run_study(study, runs_dir, processes=1, show=False, log=log.append)
    assert len(records) == len(outcomes) == 6
    assert [outcome.name.split("_")[0] for outcome in outcomes] == ["arch=multiscreen"] * 3 + ["arch=transformer"] * 3
    assert len(log) == 4
    record = records["arch=transformer_depth=1_heads=2_width=8_lr=0.02_seed=0"]
    assert record.state == "finished"
    assert record.step == 3
    assert record.seed == 0
    assert [step for step, _ in record.curves["loss"]] == [1, 2, 3]
    assert "angles.embedding.weight" in record.curves
    assert len(record.sessions[0]["commit"]) >= 3
    assert {cell["setting"] for cell in record.measures["lengths"]} == {"as trained", "RoPE scaled", "YaRN"}
    assert {cell["ratio"] for cell in record.measures["lengths"]} == {1, 2, 4, 8, 16, 32, 64}
    assert len({r.stream for r in records.values() if r.seed == 0}) == 1, "all models read the same stream"
    with refuses("is the recorded run itself"):
        repeat_run(study, record.name, runs_dir, show=False)
    repeat = repeat_run(study, record.name, tmp_path / "other", show=False)
    assert repeat is not None
    assert repeat.difference == 0, "one thread on one machine gives identical losses"
    assert repeat.agrees
    assert read_records(study.repeats)[record.name].measures == record.measures
    shutil.rmtree(runs_dir)
    before = study.records.read_text()
    again, outcomes = run_study(study, runs_dir, processes=1, show=False, log=log.append)
    assert again == records
    assert not outcomes
    assert study.records.read_text() == before
    assert not runs_dir.exists(), "recorded runs are not trained again"
    unmeasured = [{**json.loads(line), "measures": {}} for line in before.splitlines()]
    study.records.write_text("".join(json.dumps(line) + "\n" for line in unmeasured))
    run_study(study, runs_dir, processes=1, show=False, log=log.append)
    assert "recorded but not measured" in log[-1]
    file.write_text(TINY.replace("steps = 3", "steps = 4"))
    with refuses("with steps 3, but the study says 4"):
        run_study(read_study(file.parent), runs_dir, processes=1, show=False, log=log.append)


def test_records_store_settings_that_differ_from_the_defaults(study: Study) -> None:
    settings = non_default_settings(next(iter(required_runs(study, lambda name: None).choosing.values())))
    assert settings["arch"] == "multiscreen"
    assert settings["lr"] == 0.01
    assert "beta1" not in settings


def test_refusals(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, message in (
        ("steps = 3", "has no .page."),
        ("steps = ", "is not valid TOML"),
        (TINY.replace("[[study.grid]]", "[[study.grids]]"), "did you mean 'grid'"),
        (TINY.replace("seeds = [0, 1]", "seeds = []"), "at least one grid and one seed"),
    ):
        file.write_text(text)
        with refuses(message):
            read_study(file.parent)
    with refuses("cannot read .*; the studies are abcdigits, ablation-recall"):
        read_study(tmp_path / "nothing")
    records = tmp_path / "records.jsonl"
    for text, message in (("{", "is not JSON"), ("{}", "is not the record of a run"), ("[]", "is not the record")):
        records.write_text(text)
        with refuses(message):
            read_records(records)
    file.write_text(TINY)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    with refuses("has no run lr=1 of this study"):
        command.main(["repeat", "tiny", "lr=1"])
    with refuses("--processes must be at least 1, got 0"):
        command.main(["run", "tiny", "--processes", "0"])


def test_a_record_of_other_settings_is_refused(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, config = next(iter(required_runs(study, lambda name: None).choosing.items()))
    settings = {**non_default_settings(config), "steps": 10**6}
    record = SimpleNamespace(name=name, val_loss=1.0, finished=True, overrides=settings)
    monkeypatch.setattr(driver, "read_records", lambda path: {name: record})
    with refuses("with steps 1000000, but the study says"):
        repeat_run(study, name, tmp_path)


def test_a_repeated_run_that_ended_early(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, config = next(iter(required_runs(study, lambda name: None).choosing.items()))
    record = SimpleNamespace(val_loss=1.0, finished=True, overrides=non_default_settings(config))
    monkeypatch.setattr(driver, "read_records", lambda path: {name: record})
    outcomes = iter((Outcome(name, None), Outcome(name, None, "the disk is full")))
    monkeypatch.setattr(driver, "sweep", lambda *args, **options: [next(outcomes)])
    assert repeat_run(study, name, tmp_path) is None
    with refuses("failed: the disk is full"):
        repeat_run(study, name, tmp_path)


def test_a_run_that_failed_is_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {}, [Outcome("lr=1", None, "the disk is full")]
    monkeypatch.setattr(driver, "run_study", lambda *args, **options: failed)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    with refuses(r"1 runs of the study failed \(lr=1: the disk is full\); run it again to finish"):
        command.main(["run", "tiny"])


def test_commands_print_what_they_did(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["table"])
    table = capsys.readouterr().out
    assert "| claim | effect | n | verdict | study |" in table
    assert table.strip() in (ROOT / "README.md").read_text()
