"""A study: which runs it makes, that its records replace run directories, and what it refuses."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keysift.cli.sweep import Args, run
from keysift.sweep import carry
from keysift.sweep.carry import asked, carry_out, make_again
from keysift.sweep.drive import Outcome
from keysift.sweep.pages import PAGES
from keysift.sweep.records import read_records
from keysift.sweep.study import Study, read_study
from keysift.train.config import TrainConfig
from tests.refusals import refuses

RECIPES = Path(__file__).parents[2] / "recipes" / "evidence"
TINY = """
data = "recall:letters=4,values=2,queries=2"
context = 8
batch_tokens = 64
steps = 3
val_sequences = 8
log_turning = true
[study]
seeds = [0, 1]
measure = ["lengths"]
[[study.grid]]
each = ["arch=multiscreen psi=2", "arch=transformer depth=1 heads=2 width=8"]
over = ["lr=0.01,0.02"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "study.toml").write_text(TINY)
    return tmp_path / "study.toml"


@pytest.fixture
def study(file: Path) -> Study:
    return read_study(file)


def test_first_one_seed_everywhere_then_every_seed_at_the_best(study: Study) -> None:
    first = study.first()
    assert sorted(name.rpartition("_")[2] for name in first) == ["seed=0"] * 4
    figures = dict(zip(first, (2.0, 1.0, None, 3.0), strict=True))
    then = study.then(figures.__getitem__)
    assert list(then) == [
        "arch=multiscreen_psi=2_lr=0.02_seed=0",
        "arch=multiscreen_psi=2_lr=0.02_seed=1",
        "arch=transformer_depth=1_heads=2_width=8_lr=0.02_seed=0",
        "arch=transformer_depth=1_heads=2_width=8_lr=0.02_seed=1",
    ], "one that does not count is never the best"
    assert then["arch=multiscreen_psi=2_lr=0.02_seed=1"].seed == 1
    assert not study.then(lambda name: None)
    assert study.plan.runs == len({*first, *then}) == 6


def test_every_seed_everywhere(file: Path) -> None:
    file.write_text(TINY.replace("[study]", '[study]\nseeds_at = "all"'))
    study = read_study(file)
    assert len(study.first()) == study.plan.runs == 8
    assert study.then(lambda name: None) == study.first()


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_recipes_can_be_read(recipe: Path) -> None:
    study = read_study(recipe)
    assert len(study.plan.seeds) >= 3
    assert any(page.study == recipe.stem for page in PAGES), "a page shows it"
    assert study.first()


@pytest.mark.slow
def test_records_replace_run_directories(study: Study, file: Path, tmp_path: Path) -> None:
    out, kept, said = tmp_path / "out", tmp_path / "kept" / "records.jsonl", list[str]()
    known, made = carry_out(study, out, kept, processes=1, show=False, say=said.append)
    assert len(known) == len(made) == 6
    assert len(said) == 4
    one = known["arch=transformer_depth=1_heads=2_width=8_lr=0.02_seed=0"]
    assert one.state == "finished"
    assert one.step == 3
    assert one.seed == 0
    assert [step for step, _ in one.curves["loss"]] == [1, 2, 3]
    assert "angles.embedding.weight" in one.curves
    assert len(one.sessions[0]["commit"]) >= 3
    assert {cell["setting"] for cell in one.measures["lengths"]} == {"as trained", "RoPE scaled"}
    assert {cell["ratio"] for cell in one.measures["lengths"]} == {1, 2, 4, 8, 16, 32, 64}
    assert len({one.stream for one in known.values() if one.seed == 0}) == 1, "all read the same"
    with refuses("is the recorded run itself"):
        make_again(study, one.name, out, kept, show=False)
    repeated = make_again(study, one.name, tmp_path / "other", kept, show=False)
    assert repeated is not None
    assert repeated.moved == 0, "one thread, one machine: the same to the bit"
    assert repeated.holds
    assert read_records(kept.parent / "again" / kept.name)[one.name].measures == one.measures
    shutil.rmtree(out)
    before = kept.read_text()
    again, made = carry_out(study, out, kept, processes=1, show=False, say=said.append)
    assert again == known
    assert not made
    assert kept.read_text() == before
    assert not out.exists(), "nothing is made again"
    unmeasured = [{**json.loads(line), "measures": {}} for line in before.splitlines()]
    kept.write_text("".join(json.dumps(line) + "\n" for line in unmeasured))
    carry_out(study, out, kept, processes=1, show=False, say=said.append)
    assert "recorded but not measured" in said[-1]
    file.write_text(TINY.replace("steps = 3", "steps = 4"))
    with refuses("with steps 3, and the study says 4"):
        carry_out(read_study(file), out, kept, processes=1, show=False, say=said.append)


def test_asked_is_what_is_not_the_default(study: Study) -> None:
    told = asked(next(iter(study.first().values())))
    assert told["arch"] == "multiscreen"
    assert told["lr"] == 0.01
    assert "beta1" not in told


def test_refusals(file: Path, tmp_path: Path) -> None:
    for text, said in (
        ("steps = 3", "has no .study."),
        ("steps = ", "is not TOML"),
        (TINY.replace("[[study.grid]]", "[[study.grids]]"), "did you mean 'grid'"),
        (TINY.replace("seeds = [0, 1]", "seeds = []"), "at least one grid and one seed"),
    ):
        file.write_text(text)
        with refuses(said):
            read_study(file)
    with refuses("cannot be read"):
        read_study(tmp_path / "nothing.toml")
    kept = tmp_path / "records.jsonl"
    for text, said in (("{", "is not JSON"), ("{}", "is not the record of a run"), ("[]", "is not the record")):
        kept.write_text(text)
        with refuses(said):
            read_records(kept)
    told: list[tuple[dict[str, Any], str]] = [
        ({"records": kept}, "are of a study"),
        ({"again": "lr=1"}, "are of a study"),
        ({"study": file, "over": ("lr=1",)}, "a study says what is trained"),
        ({"study": file, "train": TrainConfig(steps=9)}, "a study says what is trained"),
    ]
    for fields, said in told:
        with refuses(said):
            run(Args(out=tmp_path / "out", **fields))
    file.write_text(TINY)
    with refuses("has no run lr=1 of this study"):
        run(Args(out=tmp_path / "out", study=file, again="lr=1"))
    with refuses("--again makes one run"):
        run(Args(out=tmp_path / "out", study=file, again="lr=1", processes=2))


def test_a_second_run_of_another_study_is_refused(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config = next(iter(study.first().items()))
    told = SimpleNamespace(name=name, val_loss=1.0, counts=True, asked={**asked(config), "steps": 10**6})
    monkeypatch.setattr(carry, "read_records", lambda path: {name: told})
    with refuses("with steps 1000000, and the study says"):
        make_again(study, name, tmp_path, tmp_path / "records.jsonl")


def test_a_second_run_that_ended_early(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(study.first()))
    known = SimpleNamespace(val_loss=1.0, counts=True, asked=asked(study.first()[name]))
    monkeypatch.setattr(carry, "read_records", lambda path: {name: known})
    ends = iter((Outcome(name, None), Outcome(name, None, "the disk is full")))
    monkeypatch.setattr(carry, "sweep", lambda *args, **options: [next(ends)])
    assert make_again(study, name, tmp_path, tmp_path / "records.jsonl") is None
    with refuses("failed: the disk is full"):
        make_again(study, name, tmp_path, tmp_path / "records.jsonl")


def test_a_run_that_failed_is_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "carry_out", lambda *args, **options: ({}, [Outcome("lr=1", None, "the disk is full")]))
    with refuses(r"1 runs of the study failed \(lr=1: the disk is full\); run it again to finish"):
        run(Args(study=file, out=tmp_path / "out"))
