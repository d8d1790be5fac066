"""Recall as what a run is trained on: exact resume, a curriculum in the state, held-out rows, a model that opens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data import recall
from keysift.data.batches import IGNORE
from keysift.data.tokenizer import load_tokenizer
from keysift.models.arch import MultiscreenArch, TransformerArch
from keysift.runs.compare import compare
from keysift.runs.directory import Run
from keysift.runs.metrics import read
from keysift.runs.summary import summary
from keysift.train import curriculum
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.estimate import estimate
from keysift.train.facts import read_facts
from keysift.train.source import open_source
from tests.refusals import refuses
from tests.train.in_process import go, losses

DATA = "recall:letters=4,values=2,queries=2"
ALONE = World(0, 1, torch.device("cpu"))


class Tired(Exception):
    pass


@pytest.fixture(name="asking")
def of_recall() -> TrainConfig:
    return asking()


def asking() -> TrainConfig:
    return TrainConfig(
        model=MultiscreenArch(depth=1, tiles=2, width=8, acceptance_start=(0.98,)),
        data=DATA,
        context=8,
        batch_tokens=64,
        micro_tokens=32,
        steps=12,
        save_every=4,
        val_sequences=8,
        lr=2**-6,
    )


@pytest.fixture(name="climbing")
def of_a_curriculum(monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    return climbing(monkeypatch)


def climbing(monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """A curriculum that is mastered by guessing which tokens are values: a few steps a stage."""
    monkeypatch.setattr(curriculum, "MASTERED", 0.3)
    monkeypatch.setattr(curriculum, "_KEPT", 0.6)
    return replace(asking(), data=DATA + ",start_letters=2", lr=2**-3, warmup=1, save_every=7)


def _interrupted(config: TrainConfig, run: Path, at: int) -> Path:
    def leave(line: dict[str, Any]) -> None:
        if line["step"] == at:
            raise Tired

    with pytest.raises(Tired):
        go(config, run, on_step=leave)
    return go(None, run, resume=True)


@pytest.mark.slow
def test_a_run_of_recall(asking: TrainConfig, tmp_path: Path) -> None:
    run = go(asking, tmp_path / "run")
    lines = list(read(run / "metrics.jsonl"))
    assert all(0 <= line["accuracy"] <= 1 and "bits_per_byte" not in line and "stage" not in line for line in lines)
    assert lines[-1]["val_accuracy"] == summary(run).accuracy
    assert compare([summary(run)] * 2).runs[0].accuracy == summary(run).accuracy
    assert read_facts(Run(run)).bytes_per_token is None
    assert not any((run / "samples").iterdir())
    opened = keysift.open(run)
    assert opened.tokenizer.name == "recall:hops=1,letters=4,values=2"
    (word,) = opened.generate("A=1 B=0 C=1 A?", max_new_tokens=1).split() or [""]
    assert word in ("", *recall.Recall(letters=4, values=2, queries=2).tokenizer.words)


@pytest.mark.slow
def test_resumed_is_uninterrupted(asking: TrainConfig, tmp_path: Path) -> None:
    whole = go(asking, tmp_path / "whole")
    stopped = _interrupted(asking, tmp_path / "stopped", at=6)
    assert losses(stopped) == losses(whole)
    ours, theirs = keysift.load(stopped).state_dict(), keysift.load(whole).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_a_curriculum_resumes_in_its_stage(climbing: TrainConfig, tmp_path: Path) -> None:
    """Stopped within a stage that is half mastered: both the stage and how far it was must come back."""
    whole = list(read(go(climbing, tmp_path / "whole") / "metrics.jsonl"))
    stages = [line["stage"] for line in whole]
    assert stages[0] == 0
    assert stages[-1] == 2, stages
    assert stages[6] == stages[7] == 1, f"the checkpoint after step 7 lies within a stage: {stages}"
    stopped = _interrupted(climbing, tmp_path / "stopped", at=9)
    again = list(read(stopped / "metrics.jsonl"))
    told = ("step", "stage", "loss", "accuracy")
    assert [[line[name] for name in told] for line in again] == [[line[name] for name in told] for line in whole]


@pytest.mark.slow
def test_every_step_reads_its_stage(climbing: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read ahead for a stage that is over is thrown away."""
    from keysift.evaluate import validation

    trained: list[int] = []
    summed = validation.summed

    def watched(model: torch.nn.Module, batch: Any) -> validation.Sums:
        if model.training and torch.is_grad_enabled():
            trained.append(int(batch.inputs[batch.inputs < 8].max()) // 2 + 1)
        return summed(model, batch)

    monkeypatch.setattr(validation, "summed", watched)
    lines = list(read(go(climbing, tmp_path / "run") / "metrics.jsonl"))
    letters = [max(pair) for pair in zip(trained[::2], trained[1::2], strict=True)]
    assert letters == [2 + line["stage"] for line in lines]


def test_mastery() -> None:
    assert curriculum.advance(0, 0.0, 1.0, 3) == (0, pytest.approx(0.05))
    assert curriculum.advance(0, 0.9, 1.0, 3) == (1, 0.0)
    assert curriculum.advance(2, 0.9, 1.0, 3) == (2, pytest.approx(0.905)), "there is nothing after the last stage"


def test_validation_is_on_other_rows(asking: TrainConfig) -> None:
    """Of every seed the same rows, which no seed is trained on."""
    config = replace(asking, data="recall:letters=4,queries=2")  # sixteen values: two rows are hardly ever alike
    source = open_source(config, ALONE, show=False)
    other = open_source(replace(config, seed=1), ALONE, show=False)
    held_out = source.validation(config).batch(0).inputs
    assert held_out.equal(other.validation(config).batch(0).inputs)
    seen = {tuple(row) for step in range(4) for row in source.training(config).batch(step).inputs.tolist()}
    assert not seen & {tuple(row) for row in held_out.tolist()}
    assert source.training(config).stream_hash != other.training(config).stream_hash


@pytest.mark.slow
def test_the_loss_is_at_targets_only(asking: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(asking, steps=1, lr=1e-30), tmp_path / "run")
    config = read_facts(Run(run)).config
    batch = open_source(config, ALONE, show=False).training(config).batch(0)
    with torch.no_grad():
        logits = keysift.load(run)(batch.inputs).log_softmax(-1)
    asked = batch.targets != IGNORE
    assert int(asked.sum()) == 2 * 8
    answers = batch.targets[asked]
    line = next(read(run / "metrics.jsonl"))
    assert line["loss"] == pytest.approx(-float(logits[asked].gather(1, answers[:, None]).mean()), abs=1e-5)
    assert line["accuracy"] == float((logits[asked].argmax(-1) == answers).float().mean())


@pytest.mark.slow
def test_two_kinds_of_model_read_the_same(asking: TrainConfig, tmp_path: Path) -> None:
    one = go(replace(asking, steps=1), tmp_path / "one")
    two = go(replace(asking, steps=1, model=TransformerArch(depth=1, heads=2, width=8)), tmp_path / "two")
    assert read_facts(Run(one)).stream == read_facts(Run(two)).stream
    assert load_tokenizer(one).hash == load_tokenizer(two).hash


def test_what_it_would_cost(asking: TrainConfig) -> None:
    told = estimate(asking)
    assert told["data"] == "endless training tokens of recall:hops=1,letters=4,values=2"
    assert told["tokens"] == "768"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data": "recall:length=64"}, "the length of recall is --context"),
        ({"data": "recall:seed=1"}, "the seed of recall is --seed"),
        ({"data": "recall:leters=8"}, "did you mean 'letters'?"),
        ({"data": "recall:letters"}, "written key=value"),
        ({"data": "recall:letters=many"}, "Recall.letters must be an integer"),
        ({"data": "recall:letters=8,queries=4,start_letters=3"}, "between the letters asked .4. and all 8, got 3"),
        ({"data": "recall", "context": 8}, "at least 16 tokens"),
        ({"tokenizer": "bytes"}, "recall makes its own rows, so tokenizer changes nothing"),
        ({"isolate": True}, "isolate changes nothing"),
        ({"val_fraction": 0.1}, "val_fraction changes nothing"),
        ({"rows": "stream"}, "rows changes nothing"),
    ],
)
def test_refusals(asking: TrainConfig, fields: dict[str, Any], said: str) -> None:
    with refuses(said):
        open_source(replace(asking, **fields), ALONE, show=False)
