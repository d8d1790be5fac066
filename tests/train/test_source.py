"""Training on generated recall rows: exact resume, curriculum state, held-out rows, loading the model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.batches import IGNORE
from keysift.data.tasks import recall
from keysift.data.tokenizers.load import load_tokenizer
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.runs.compare import compare
from keysift.runs.directory import Run
from keysift.runs.metrics import read
from keysift.runs.summary import summary
from keysift.train import source
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.manifest import read_manifest
from keysift.train.preflight import estimate
from keysift.train.source import open_source
from tests.refusals import refuses
from tests.train.in_process import losses, run_training

DATA = "recall:letters=4,values=2,queries=2"
SINGLE_PROCESS = World(0, 1, torch.device("cpu"))


class Interruption(Exception):
    pass


@pytest.fixture(name="recall_config")
def recall_config_fixture() -> TrainConfig:
    return recall_config()


def recall_config() -> TrainConfig:
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


@pytest.fixture(name="curriculum_config")
def curriculum_config_fixture(monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    return curriculum_config(monkeypatch)


def curriculum_config(monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """A curriculum with a low threshold: guessing among the values passes a stage within a few steps."""
    monkeypatch.setattr(source, "MASTERED", 0.3)
    monkeypatch.setattr(source, "_MOMENTUM", 0.6)
    return replace(recall_config(), data=DATA + ",start_letters=2", lr=2**-3, warmup=1, save_every=7)


def _interrupt_and_resume(config: TrainConfig, run: Path, at: int) -> Path:
    def interrupt(line: dict[str, Any]) -> None:
        if line["step"] == at:
            raise Interruption

    with pytest.raises(Interruption):
        run_training(config, run, on_step=interrupt)
    return run_training(None, run, resume=True)


@pytest.mark.slow
def test_training_on_recall(recall_config: TrainConfig, tmp_path: Path) -> None:
    run = run_training(recall_config, tmp_path / "run")
    lines = list(read(run / "metrics.jsonl"))
    assert all(0 <= line["accuracy"] <= 1 and "bits_per_byte" not in line and "stage" not in line for line in lines)
    assert lines[-1]["val_accuracy"] == summary(run).accuracy
    assert compare([summary(run)] * 2).runs[0].accuracy == summary(run).accuracy
    assert read_manifest(Run(run)).bytes_per_token is None
    assert not any((run / "samples").iterdir())
    opened = keysift.open(run)
    assert opened.tokenizer.name == "recall:hops=1,letters=4,values=2"
    (word,) = opened.generate("A=1 B=0 C=1 A?", max_new_tokens=1).split() or [""]
    assert word in ("", *recall.Recall(letters=4, values=2, queries=2).tokenizer.words)


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_run(recall_config: TrainConfig, tmp_path: Path) -> None:
    uninterrupted = run_training(recall_config, tmp_path / "uninterrupted")
    resumed = _interrupt_and_resume(recall_config, tmp_path / "resumed", at=6)
    assert losses(resumed) == losses(uninterrupted)
    weights, expected = keysift.load(resumed).state_dict(), keysift.load(uninterrupted).state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_a_curriculum_resumes_in_its_stage(curriculum_config: TrainConfig, tmp_path: Path) -> None:
    """The run is interrupted in the middle of a stage; the stage and its running accuracy must be restored."""
    uninterrupted = list(read(run_training(curriculum_config, tmp_path / "uninterrupted") / "metrics.jsonl"))
    stages = [line["stage"] for line in uninterrupted]
    assert stages[0] == 0
    assert stages[-1] == 2, stages
    assert stages[6] == stages[7] == 1, f"the checkpoint after step 7 is not within a stage: {stages}"
    run = _interrupt_and_resume(curriculum_config, tmp_path / "resumed", at=9)
    resumed = list(read(run / "metrics.jsonl"))
    for name in ("step", "stage", "loss", "accuracy"):
        assert [line[name] for line in resumed] == [line[name] for line in uninterrupted]


@pytest.mark.slow
def test_every_step_trains_on_its_stage(
    curriculum_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefetched batches of a finished stage are discarded."""
    from keysift.models import losses

    largest_letters: list[int] = []
    batch_loss = losses.batch_loss

    def recording_loss(model: torch.nn.Module, batch: Any) -> losses.BatchLoss:
        if model.training and torch.is_grad_enabled():
            largest_letters.append(int(batch.inputs[batch.inputs < 8].max()) // 2 + 1)
        return batch_loss(model, batch)

    monkeypatch.setattr(losses, "batch_loss", recording_loss)
    lines = list(read(run_training(curriculum_config, tmp_path / "run") / "metrics.jsonl"))
    letters = [max(pair) for pair in zip(largest_letters[::2], largest_letters[1::2], strict=True)]
    assert letters == [2 + line["stage"] for line in lines]


def test_advance_stage() -> None:
    assert source.advance_stage(0, 0.0, 1.0, 3) == (0, pytest.approx(0.05))
    assert source.advance_stage(0, 0.9, 1.0, 3) == (1, 0.0)
    assert source.advance_stage(2, 0.9, 1.0, 3) == (2, pytest.approx(0.905)), "advanced past the last stage"


def test_validation_rows_are_held_out(recall_config: TrainConfig) -> None:
    """All seeds share the validation rows, and no seed trains on them."""
    # Sixteen values by default, so equal rows are very unlikely.
    config = replace(recall_config, data="recall:letters=4,queries=2")
    source = open_source(config, SINGLE_PROCESS, show=False)
    other = open_source(replace(config, seed=1), SINGLE_PROCESS, show=False)
    held_out = source.validation(config).batch(0).inputs
    assert held_out.equal(other.validation(config).batch(0).inputs)
    seen = {tuple(row) for step in range(4) for row in source.training(config).batch(step).inputs.tolist()}
    assert not seen & {tuple(row) for row in held_out.tolist()}
    assert source.training(config).stream_hash != other.training(config).stream_hash


@pytest.mark.slow
def test_the_loss_covers_targets_only(recall_config: TrainConfig, tmp_path: Path) -> None:
    run = run_training(replace(recall_config, steps=1, lr=1e-30), tmp_path / "run")
    config = read_manifest(Run(run)).config
    batch = open_source(config, SINGLE_PROCESS, show=False).training(config).batch(0)
    with torch.no_grad():
        log_probs = keysift.load(run)(batch.inputs).log_softmax(-1)
    is_target = batch.targets != IGNORE
    assert int(is_target.sum()) == 2 * 8
    answers = batch.targets[is_target]
    line = next(read(run / "metrics.jsonl"))
    assert line["loss"] == pytest.approx(-float(log_probs[is_target].gather(1, answers[:, None]).mean()), abs=1e-5)
    assert line["accuracy"] == float((log_probs[is_target].argmax(-1) == answers).float().mean())


@pytest.mark.slow
def test_architectures_share_data_and_tokenizer(recall_config: TrainConfig, tmp_path: Path) -> None:
    multiscreen = run_training(replace(recall_config, steps=1), tmp_path / "multiscreen")
    transformer = run_training(
        replace(recall_config, steps=1, model=TransformerArch(depth=1, heads=2, width=8)), tmp_path / "transformer"
    )
    assert read_manifest(Run(multiscreen)).stream == read_manifest(Run(transformer)).stream
    assert load_tokenizer(multiscreen).hash == load_tokenizer(transformer).hash


def test_estimate(recall_config: TrainConfig) -> None:
    rows = estimate(recall_config)
    assert rows["data"] == "endless training tokens of recall:hops=1,letters=4,values=2"
    assert rows["tokens"] == "768"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data": "recall:length=64"}, "the length of recall is set by --context"),
        ({"data": "recall:seed=1"}, "the seed of recall is set by --seed"),
        ({"data": "recall:leters=8"}, "did you mean 'letters'?"),
        ({"data": "recall:letters"}, "written key=value"),
        ({"data": "recall:letters=many"}, "Recall.letters must be an integer"),
        (
            {"data": "recall:letters=8,queries=4,start_letters=3"},
            "between the number of queried letters .4. and all 8, got 3",
        ),
        ({"data": "recall", "context": 8}, "at least 16 tokens"),
        ({"tokenizer": "bytes"}, "recall generates its own rows, so tokenizer has no effect"),
        ({"isolate": True}, "isolate has no effect"),
        ({"val_fraction": 0.1}, "val_fraction has no effect"),
        ({"rows": "stream"}, "rows has no effect"),
    ],
)
def test_invalid_settings_are_rejected(recall_config: TrainConfig, fields: dict[str, Any], message: str) -> None:
    with refuses(message):
        open_source(replace(recall_config, **fields), SINGLE_PROCESS, show=False)
