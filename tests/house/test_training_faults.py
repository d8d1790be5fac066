"""Faults of training loops, seeded one at a time: each must fail a test of tests/train/ or tests/runs/.

Most patch objects of this process, and the test function runs here. Faults of distributed training change the source,
because torchrun starts new processes.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.data import batches as data
from keysift.models import losses
from keysift.models.architecture import TransformerArch
from keysift.runs import checkpoint, directory, metrics
from keysift.train import checkpoint as training_checkpoint
from keysift.train import loop, optimizer, source
from keysift.train.checkpoint import TrainingState
from keysift.train.config import TrainConfig
from tests.house.seeded import Fault, is_caught, seed
from tests.models import test_losses
from tests.runs import test_checkpoint, test_directory
from tests.train import test_diagnosis, test_loop, test_source
from tests.train.conftest import cache, corpus, tiny  # noqa: F401

Patch = pytest.MonkeyPatch
Test = Callable[..., None]


def no_op(*arguments: Any, **options: Any) -> None: ...


def metrics_not_cut(patch: Patch) -> None:
    """Steps after the checkpoint stay in the file, and the resumed run writes them again."""
    patch.setattr(metrics, "truncate", no_op)


def moments_not_restored(patch: Patch) -> None:
    read = training_checkpoint.read_tensors

    def read_without_moments(folder: Path, index: Any, tensors: dict[str, Tensor]) -> None:
        read(folder, index, {name: t for name, t in tensors.items() if not name.startswith("optimizer.")})

    patch.setattr(training_checkpoint, "read_tensors", read_without_moments)


def average_not_stored(patch: Patch) -> None:
    tensors = TrainingState._tensors
    patch.setattr(
        TrainingState, "_tensors", lambda self: {n: t for n, t in tensors(self).items() if not n.startswith("ema.")}
    )


def average_not_used(patch: Patch) -> None:
    patch.setattr(TrainingState, "full_model", _full_model_without_average)


def _full_model_without_average(self: TrainingState) -> Any:
    average, self.ema = self.ema, {}
    try:
        return FULL_MODEL(self)
    finally:
        self.ema = average


FULL_MODEL = TrainingState.full_model


def data_restarts(patch: Patch) -> None:
    """A resumed run reads the first batches again."""
    fetch = loop.Session._fetch
    seen: dict[int, int] = {}
    patch.setattr(loop.Session, "_fetch", lambda self, step: fetch(self, step - seen.setdefault(id(self), step)))


def order_without_seed(patch: Patch) -> None:
    permute = data.permute
    patch.setattr(data, "permute", lambda numbers, n, key: permute(numbers, n, key.split()[1]))


def weights_and_order_without_seed(patch: Patch) -> None:
    order_without_seed(patch)
    build = loop.build
    patch.setattr(loop, "build", lambda shape, generator: build(shape, torch.Generator().manual_seed(0)))


def warm_up_forgotten(patch: Patch) -> None:
    patch.setattr(loop, "lr_multiplier", lambda config, step: 1.0)


def warm_up_one_late(patch: Patch) -> None:
    multiplier = loop.lr_multiplier
    patch.setattr(loop, "lr_multiplier", lambda config, step: multiplier(config, max(0, step - 1)))


def gradients_kept(patch: Patch) -> None:
    patch.setattr(torch.optim.AdamW, "zero_grad", no_op)


def loss_of_each_accumulation_step_averaged(patch: Patch) -> None:
    """The loss is divided by the tokens of one of two accumulation steps, so the gradient is twice as large."""
    summed = losses.batch_loss
    patch.setattr(
        losses, "batch_loss", lambda model, batch: summed(model, batch)._replace(loss=2 * summed(model, batch).loss)
    )


def clip_forgotten(patch: Patch) -> None:
    patch.setattr(optimizer, "clip_gradients", no_op)


def everything_decays(patch: Patch) -> None:
    adamw = training_checkpoint.adamw

    def wrong(parameters: Any, config: TrainConfig) -> torch.optim.AdamW:
        result = adamw(parameters, config)
        for group in result.param_groups:
            group["weight_decay"] = config.weight_decay
        return result

    patch.setattr(training_checkpoint, "adamw", wrong)


def segments_ignored(patch: Patch) -> None:
    summed = losses.batch_loss

    def without_positions(model: torch.nn.Module, batch: data.Batch) -> losses.BatchLoss:
        return summed(model, data.Batch(inputs=batch.inputs, targets=batch.targets, rows=batch.rows))

    patch.setattr(losses, "batch_loss", without_positions)


def hashes_not_compared(patch: Patch) -> None:
    patch.setattr(checkpoint, "_sha256", lambda path: "")


def leftovers_not_removed(patch: Patch) -> None:
    """Files left by a killed process are never removed."""
    patch.setattr(checkpoint, "remove_leftovers", no_op)


def best_removed(patch: Patch) -> None:
    remove_old_checkpoints = checkpoint.remove_old_checkpoints
    patch.setattr(
        checkpoint,
        "remove_old_checkpoints",
        lambda folder, last, every, best: remove_old_checkpoints(folder, last=last, every=every, best=None),
    )


def non_finite_loss_ignored(patch: Patch) -> None:
    patch.setattr(loop.Session, "_abort", no_op)


def other_text_accepted(patch: Patch) -> None:
    patch.setattr(data.Batches, "stream_hash", property(lambda self: "0" * 64))


def no_lock(patch: Patch) -> None:
    patch.setattr(directory.fcntl, "flock", no_op)


def validation_on_training_text(patch: Patch) -> None:
    patch.setattr(source.TextSource, "validation", source.TextSource.training)


def stage_not_saved(patch: Patch) -> None:
    """A resumed run begins its curriculum again."""
    load = TrainingState.load

    def load_without_stage(self: TrainingState, path: Path) -> None:
        load(self, path)
        self.stage, self.mastery = 0, 0.0

    patch.setattr(TrainingState, "load", load_without_stage)


def mastery_not_saved(patch: Patch) -> None:
    load = TrainingState.load

    def load_without_mastery(self: TrainingState, path: Path) -> None:
        load(self, path)
        self.mastery = 0.0

    patch.setattr(TrainingState, "load", load_without_mastery)


def batch_of_the_old_stage(patch: Patch) -> None:
    """A batch read ahead for the previous stage is used for training."""
    advance_stage = loop.Session._advance_stage

    def without_refetch(self: loop.Session, line: dict[str, Any]) -> bool:
        advance_stage(self, line)
        return False

    patch.setattr(loop.Session, "_advance_stage", without_refetch)


def validation_on_training_rows(patch: Patch) -> None:
    patch.setattr(source, "FIRST_VALIDATION_ROW", 0)


def _resumed(**fields: Any) -> Test:
    def check(tiny: TrainConfig, tmp_path: Path) -> None:  # noqa: F811
        test_loop.test_a_resumed_run_equals_an_uninterrupted_run(tiny, tmp_path, fields)

    return check


def _plain(**fields: Any) -> Test:
    def check(tiny: TrainConfig, tmp_path: Path) -> None:  # noqa: F811
        test_loop.test_the_loop_matches_a_minimal_loop(tiny, tmp_path, {"lr": 1e-3, **fields})

    return check


def _damaged(tiny: TrainConfig, tmp_path: Path, corpus: Path) -> None:  # noqa: F811
    run = test_checkpoint.train_briefly(corpus, tmp_path / "run")
    test_checkpoint.test_a_corrupt_file_is_refused_and_the_previous_checkpoint_loads(
        run, "state/shard-00000.safetensors"
    )


def _left_over(tiny: TrainConfig, tmp_path: Path, corpus: Path) -> None:  # noqa: F811
    test_checkpoint.test_leftovers_of_a_killed_process_are_removed(
        test_checkpoint.train_briefly(corpus, tmp_path / "run")
    )


TRANSFORMER = {"model": TransformerArch(depth=1, heads=2, width=8)}
resumed, averaged, plain = _resumed(), _resumed(ema=0.9), _plain()
clipped, decayed = _plain(**TRANSFORMER, clip=0.1), _plain(weight_decay=5.0)

FAULTS: list[tuple[Callable[[Patch], None], Test]] = [
    (metrics_not_cut, resumed),
    (moments_not_restored, resumed),
    (data_restarts, resumed),
    (average_not_stored, averaged),
    (average_not_used, test_loop.test_saved_weights_are_the_ema),
    (weights_and_order_without_seed, test_loop.test_the_seed_determines_the_run),
    (warm_up_forgotten, plain),
    (warm_up_one_late, plain),
    (gradients_kept, plain),
    (loss_of_each_accumulation_step_averaged, plain),
    (clip_forgotten, clipped),
    (everything_decays, decayed),
    (segments_ignored, test_losses.test_isolated_documents_have_the_loss_of_each_alone),
    (hashes_not_compared, _damaged),
    (leftovers_not_removed, _left_over),
    (best_removed, test_directory.test_retention),
    (non_finite_loss_ignored, test_diagnosis.test_a_non_finite_loss_stops_the_run),
    (other_text_accepted, test_directory.test_changed_text_is_refused),
    (no_lock, test_directory.test_a_second_trainer_is_refused),
    (validation_on_training_text, test_loop.test_validation_uses_held_out_documents),
    (stage_not_saved, test_source.test_a_curriculum_resumes_in_its_stage),
    (mastery_not_saved, test_source.test_a_curriculum_resumes_in_its_stage),
    (batch_of_the_old_stage, test_source.test_every_step_trains_on_its_stage),
    (validation_on_training_rows, test_source.test_validation_rows_are_held_out),
]


def _label(value: object) -> str:
    return getattr(value, "__qualname__", str(value)).replace("<locals>.", "").removeprefix("test_")


def run_check(check: Test, tiny: TrainConfig, tmp_path: Path, corpus: Path, monkeypatch: Patch) -> None:  # noqa: F811
    fixtures = {"tiny": tiny, "tmp_path": tmp_path, "corpus": corpus, "monkeypatch": monkeypatch}
    fixtures |= {
        "recall_config": test_source.recall_config(),
        "curriculum_config": test_source.curriculum_config(monkeypatch),
    }
    check(**{name: fixtures[name] for name in check.__code__.co_varnames[: check.__code__.co_argcount]})


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=_label)
def test_a_fault_fails_its_test(
    fault: Callable[[Patch], None],
    check: Test,
    tiny: TrainConfig,  # noqa: F811
    tmp_path: Path,
    corpus: Path,  # noqa: F811
    monkeypatch: Patch,
) -> None:
    fault(monkeypatch)
    # pytest.raises fails with an exception of its own if no error is raised.
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        run_check(check, tiny, tmp_path, corpus, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in FAULTS), ids=_label)
def test_the_tests_pass_without_a_fault(
    check: Test,
    tiny: TrainConfig,  # noqa: F811
    tmp_path: Path,
    corpus: Path,  # noqa: F811
    monkeypatch: Patch,
) -> None:
    run_check(check, tiny, tmp_path, corpus, monkeypatch)


TWO = "tests/train/test_distributed.py"
DISTRIBUTED = [
    Fault(
        "gradients not reduced",
        "train/distributed.py",
        "isinstance(self.model, DistributedDataParallel) and not last",
        "isinstance(self.model, DistributedDataParallel)",
        TWO,
        "two_processes and ddp",
    ),
    Fault(
        "the loss divided by the tokens of this process",
        "train/loop.py",
        "(tokens,) = self.world.sum(sum(map(losses.count_targets, batches)))",
        "tokens = sum(map(losses.count_targets, batches))",
        TWO,
        "two_processes and ddp",
    ),
    Fault(
        "gradients of unsharded parameters not reduced",
        "train/distributed.py",
        "dist.all_reduce(parameter.grad)",
        "None",
        TWO,
        "two_processes and fsdp2",
    ),
    Fault(
        "gathered weights kept after an update",
        "train/distributed.py",
        "self.model.reshard()",
        "None",
        TWO,
        "micro_batches and fsdp2",
    ),
    Fault(
        "every process reads the same sequences",
        "train/loop.py",
        "own = range(self.world.rank, parts, self.world.size)",
        "own = range(0, parts, self.world.size)",
        TWO,
        "two_processes and ddp",
    ),
]


each_fault = pytest.mark.parametrize("fault", DISTRIBUTED, ids=lambda fault: fault.name)


@each_fault
def test_the_fault_applies(fault: Fault) -> None:
    seed(fault)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("SOAK"), reason="faults of several processes are seeded in `make soak`")
@each_fault
def test_a_fault_of_several_processes_is_caught(fault: Fault) -> None:
    is_caught(fault)
