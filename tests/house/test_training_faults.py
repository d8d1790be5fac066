"""Faults of training loops, seeded one at a time: each must turn a test of tests/train/ red.

Most are patched in this process and met by the test function itself; faults of several processes change a copy of the
source, because torchrun starts its own.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.data import batches as data
from keysift.evaluate import validation
from keysift.models.arch import TransformerArch
from keysift.runs import checkpoint, directory, metrics
from keysift.train import loop, optimizer, shards, source, state
from keysift.train.config import TrainConfig
from tests.evaluate import test_validation
from tests.house.test_faults import Fault, red
from tests.runs import test_checkpoint, test_directory
from tests.train import test_diagnosis, test_loop, test_source
from tests.train.conftest import cache, corpus, tiny  # noqa: F401

Patch = pytest.MonkeyPatch
Test = Callable[..., None]


def nothing(*arguments: Any, **options: Any) -> None: ...


def metrics_not_cut(patch: Patch) -> None:
    """Steps after the checkpoint stay in the file and are written again."""
    patch.setattr(metrics, "cut", nothing)


def moments_not_restored(patch: Patch) -> None:
    read = shards.read

    def forgetful(folder: Path, index: Any, tensors: dict[str, Tensor]) -> None:
        read(folder, index, {name: t for name, t in tensors.items() if not name.startswith("optimizer.")})

    patch.setattr(shards, "read", forgetful)


def average_not_stored(patch: Patch) -> None:
    tensors = state.State._tensors
    patch.setattr(
        state.State, "_tensors", lambda self: {n: t for n, t in tensors(self).items() if not n.startswith("ema.")}
    )


def average_not_used(patch: Patch) -> None:
    patch.setattr(state.State, "plain", _plain_of_weights)


def _plain_of_weights(self: state.State) -> Any:
    held, self.ema = self.ema, {}
    try:
        return PLAIN(self)
    finally:
        self.ema = held


PLAIN = state.State.plain


def data_begins_anew(patch: Patch) -> None:
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
    patch.setattr(loop, "share", lambda config, step: 1.0)


def warm_up_one_late(patch: Patch) -> None:
    share = loop.share
    patch.setattr(loop, "share", lambda config, step: share(config, max(0, step - 1)))


def gradients_kept(patch: Patch) -> None:
    patch.setattr(torch.optim.AdamW, "zero_grad", nothing)


def loss_of_each_accumulation_step_averaged(patch: Patch) -> None:
    """Divided by the tokens of one of two accumulation steps, and then added: twice the gradient."""
    summed = validation.summed
    patch.setattr(
        validation, "summed", lambda model, batch: summed(model, batch)._replace(loss=2 * summed(model, batch).loss)
    )


def clip_forgotten(patch: Patch) -> None:
    patch.setattr(optimizer, "clip", nothing)


def everything_decays(patch: Patch) -> None:
    adamw = state.adamw

    def wrong(parameters: Any, config: TrainConfig) -> torch.optim.AdamW:
        made = adamw(parameters, config)
        for group in made.param_groups:
            group["weight_decay"] = config.weight_decay
        return made

    patch.setattr(state, "adamw", wrong)


def segments_ignored(patch: Patch) -> None:
    summed = validation.summed

    def blind(model: torch.nn.Module, batch: data.Batch) -> validation.Sums:
        return summed(model, data.Batch(inputs=batch.inputs, targets=batch.targets, rows=batch.rows))

    patch.setattr(validation, "summed", blind)


def hashes_not_compared(patch: Patch) -> None:
    patch.setattr(checkpoint, "_sha256", lambda path: "")


def leftovers_stay(patch: Patch) -> None:
    """What a killed process left is never removed."""
    patch.setattr(checkpoint, "tidy", nothing)


def best_removed(patch: Patch) -> None:
    retain = checkpoint.retain
    patch.setattr(
        checkpoint, "retain", lambda folder, last, every, best: retain(folder, last=last, every=every, best=None)
    )


def non_finite_loss_goes_on(patch: Patch) -> None:
    patch.setattr(loop.Session, "_give_up", nothing)


def other_text_accepted(patch: Patch) -> None:
    patch.setattr(data.Batches, "stream_hash", property(lambda self: "0" * 64))


def no_lock(patch: Patch) -> None:
    patch.setattr(directory.fcntl, "flock", nothing)


def validation_on_training_text(patch: Patch) -> None:
    patch.setattr(source.Text, "validation", source.Text.training)


def stage_not_saved(patch: Patch) -> None:
    """A resumed run begins its curriculum again."""
    load = state.State.load

    def forgetful(self: state.State, path: Path) -> None:
        load(self, path)
        self.stage, self.mastery = 0, 0.0

    patch.setattr(state.State, "load", forgetful)


def mastery_not_saved(patch: Patch) -> None:
    load = state.State.load

    def forgetful(self: state.State, path: Path) -> None:
        load(self, path)
        self.mastery = 0.0

    patch.setattr(state.State, "load", forgetful)


def batch_of_the_old_stage(patch: Patch) -> None:
    """What was read ahead is trained on, though the stage it belongs to is over."""
    mastered = loop.Session._mastered

    def late(self: loop.Session, line: dict[str, Any]) -> bool:
        mastered(self, line)
        return False

    patch.setattr(loop.Session, "_mastered", late)


def questions_of_the_training_rows(patch: Patch) -> None:
    patch.setattr(source, "HELD_OUT", 0)


def _resumed(**fields: Any) -> Test:
    def check(tiny: TrainConfig, tmp_path: Path) -> None:  # noqa: F811
        test_loop.test_resumed_is_uninterrupted(tiny, tmp_path, fields)

    return check


def _plain(**fields: Any) -> Test:
    def check(tiny: TrainConfig, tmp_path: Path) -> None:  # noqa: F811
        test_loop.test_the_loop_is_plain_training(tiny, tmp_path, {"lr": 1e-3, **fields})

    return check


def _damaged(tiny: TrainConfig, tmp_path: Path, corpus: Path) -> None:  # noqa: F811
    made = test_checkpoint.made(corpus, tmp_path / "run")
    test_checkpoint.test_one_changed_byte_is_refused_and_the_one_before_loads(made, "state/shard-00000.safetensors")


def _left_over(tiny: TrainConfig, tmp_path: Path, corpus: Path) -> None:  # noqa: F811
    test_checkpoint.test_what_a_killed_process_left_is_swept_away(test_checkpoint.made(corpus, tmp_path / "run"))


TRANSFORMER = {"model": TransformerArch(depth=1, heads=2, width=8)}
resumed, averaged, plain = _resumed(), _resumed(ema=0.9), _plain()
clipped, decayed = _plain(**TRANSFORMER, clip=0.1), _plain(weight_decay=5.0)

FAULTS: list[tuple[Callable[[Patch], None], Test]] = [
    (metrics_not_cut, resumed),
    (moments_not_restored, resumed),
    (data_begins_anew, resumed),
    (average_not_stored, averaged),
    (average_not_used, test_loop.test_ema_is_what_is_saved),
    (weights_and_order_without_seed, test_loop.test_one_seed_one_run),
    (warm_up_forgotten, plain),
    (warm_up_one_late, plain),
    (gradients_kept, plain),
    (loss_of_each_accumulation_step_averaged, plain),
    (clip_forgotten, clipped),
    (everything_decays, decayed),
    (segments_ignored, test_validation.test_isolated_documents_are_learned_alone),
    (hashes_not_compared, _damaged),
    (leftovers_stay, _left_over),
    (best_removed, test_directory.test_retention),
    (non_finite_loss_goes_on, test_diagnosis.test_a_non_finite_loss),
    (other_text_accepted, test_directory.test_other_text_is_refused),
    (no_lock, test_directory.test_one_trainer_at_a_time),
    (validation_on_training_text, test_loop.test_validation_is_of_held_out_text),
    (stage_not_saved, test_source.test_a_curriculum_resumes_in_its_stage),
    (mastery_not_saved, test_source.test_a_curriculum_resumes_in_its_stage),
    (batch_of_the_old_stage, test_source.test_every_step_reads_its_stage),
    (questions_of_the_training_rows, test_source.test_validation_is_on_other_rows),
]


def _label(value: object) -> str:
    return getattr(value, "__qualname__", str(value)).replace("<locals>.", "").removeprefix("test_")


def meet(check: Test, tiny: TrainConfig, tmp_path: Path, corpus: Path, monkeypatch: Patch) -> None:  # noqa: F811
    known = {"tiny": tiny, "tmp_path": tmp_path, "corpus": corpus, "monkeypatch": monkeypatch}
    known |= {"asking": test_source.asking(), "climbing": test_source.climbing(monkeypatch)}
    check(**{name: known[name] for name in check.__code__.co_varnames[: check.__code__.co_argcount]})


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=_label)
def test_a_seeded_fault_turns_its_test_red(
    fault: Callable[[Patch], None],
    check: Test,
    tiny: TrainConfig,  # noqa: F811
    tmp_path: Path,
    corpus: Path,  # noqa: F811
    monkeypatch: Patch,
) -> None:
    fault(monkeypatch)
    # A refusal that does not come is pytest's own kind of failure.
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        meet(check, tiny, tmp_path, corpus, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in FAULTS), ids=_label)
def test_the_tests_are_green_without_a_fault(
    check: Test,
    tiny: TrainConfig,  # noqa: F811
    tmp_path: Path,
    corpus: Path,  # noqa: F811
    monkeypatch: Patch,
) -> None:
    meet(check, tiny, tmp_path, corpus, monkeypatch)


TWO = "tests/train/test_distributed.py"
DISTRIBUTED = [
    Fault(
        "gradients stay at home",
        "train/distributed.py",
        "if isinstance(self.model, DistributedDataParallel) and not last:",
        "if isinstance(self.model, DistributedDataParallel):",
        TWO,
        "two_processes and ddp",
    ),
    Fault(
        "the loss divided by this process's tokens",
        "train/loop.py",
        "(tokens,) = self.world.sum(sum(map(validation.targets, batches)))",
        "tokens = sum(map(validation.targets, batches))",
        TWO,
        "two_processes and ddp",
    ),
    Fault(
        "numbers that are not sharded keep their own gradients",
        "train/distributed.py",
        "                    dist.all_reduce(parameter.grad)\n",
        "",
        TWO,
        "two_processes and fsdp2",
    ),
    Fault(
        "gathered weights outlive a change",
        "train/distributed.py",
        "            self.model.reshard()\n",
        "            pass\n",
        TWO,
        "another_cut and fsdp2",
    ),
    Fault(
        "every process reads the same part",
        "train/loop.py",
        "mine = range(self.world.rank, parts, self.world.size)",
        "mine = range(0, parts, self.world.size)",
        TWO,
        "two_processes and ddp",
    ),
]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("SOAK"), reason="faults of several processes are seeded in `make soak`")
@pytest.mark.parametrize("fault", DISTRIBUTED, ids=lambda fault: fault.name)
def test_a_fault_of_several_processes_is_caught(fault: Fault, tmp_path: Path) -> None:
    done = red(tmp_path, fault)
    assert done.returncode == 1, f"the suite stayed green:\n{done.stdout[-2000:]}"
    assert "failed" in done.stdout
