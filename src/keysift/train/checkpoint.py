"""Training state: weights, optimizer moments, EMA and counters; saved as safetensors shards without pickle.

state/shard-00000.safetensors   tensors written by rank 0
state/index.json                shape and parts of each tensor: file, first row, number of rows

Any number of processes can read a checkpoint that any other number wrote: a tensor that fsdp2 shards along its first
axis is assembled from the parts that overlap.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from keysift.core import safe_json
from keysift.core.config import config, from_dict
from keysift.core.errors import ConfigError, DataError, TrainingError
from keysift.core.regular_file import open_regular
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.load import save_tokenizer
from keysift.models.language_model import LanguageModel
from keysift.models.registry import build_meta
from keysift.models.save import write_model
from keysift.runs import checkpoint
from keysift.runs.layout import checkpoint_name, checkpoint_steps
from keysift.train.config import TrainConfig
from keysift.train.distributed import DistributedModel, World, full_tensor
from keysift.train.optimizer import adamw, init_ema

INDEX = "index.json"
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class TrainingState:
    """Everything a run needs to resume exactly."""

    distributed: DistributedModel
    optimizer: torch.optim.AdamW
    ema: dict[str, Tensor]
    step: int = 0
    best: float | None = None
    best_step: int | None = None
    seconds: float = 0.0  # of training, over all sessions
    stage: int = 0  # of a curriculum
    mastery: float = 0.0  # running accuracy in this stage
    rng: Tensor = field(default_factory=torch.get_rng_state)

    @classmethod
    def new(cls, distributed: DistributedModel, config: TrainConfig) -> "TrainingState":
        ema = init_ema(distributed.parameters) if config.ema else {}
        return cls(distributed, adamw(distributed.parameters, config), ema)

    def _tensors(self) -> dict[str, Tensor]:
        """Weights, moments and EMA under the names they have in a checkpoint."""
        tensors = {f"model.{name}": parameter.detach() for name, parameter in self.distributed.parameters.items()}
        for name, parameter in self.distributed.parameters.items():
            moments = self.optimizer.state[parameter]
            if not moments:
                moments["step"] = torch.tensor(float(self.step))
                moments.update({moment: torch.zeros_like(parameter.detach()) for moment in _MOMENTS})
            tensors.update({f"optimizer.{name}.{moment}": moments[moment] for moment in _MOMENTS})
        tensors.update({f"ema.{name}": tensor for name, tensor in self.ema.items()})
        return tensors

    def save(self, folder: Path, tokenizer: Tokenizer, model: LanguageModel) -> None:
        """Write a checkpoint. Every rank must call this; `model` is the result of `full_model`."""
        world, step = self.distributed.world, self.step
        # Unsharded tensors are the same on every rank; rank zero writes them.
        own = {name: t for name, t in self._tensors().items() if world.is_rank_zero or isinstance(t, DTensor)}
        own[f"rng.{world.rank}"] = torch.get_rng_state()
        progress = checkpoint.Progress(
            step=step,
            best=self.best,
            best_step=self.best_step,
            seconds=self.seconds,
            processes=world.size,
            stage=self.stage,
            mastery=self.mastery,
        )
        state = checkpoint.working_folder(folder, step) / checkpoint.STATE
        with ExitStack() as stack:

            def begin() -> None:
                fresh = stack.enter_context(checkpoint.new_checkpoint(folder, progress))
                (fresh / checkpoint.STATE).mkdir()

            def finish() -> None:
                write_index(state)
                write_model(model, state.parent)
                save_tokenizer(tokenizer, state.parent)
                stack.close()

            fail_together(begin if world.is_rank_zero else _nothing, folder, step, world)
            fail_together(lambda: write_shard(state, own, world.rank), folder, step, world)
            fail_together(finish if world.is_rank_zero else _nothing, folder, step, world)

    def load(self, path: Path) -> None:
        """Restore from a checkpoint written by any number of processes."""
        folder = path / checkpoint.STATE
        index, tensors = read_index(folder), self._tensors()
        own_rng = f"rng.{self.distributed.world.rank}"
        if own_rng in index:
            tensors[own_rng] = self.rng.clone()
        read_tensors(folder, index, tensors)
        if own_rng in tensors:
            torch.set_rng_state(tensors[own_rng])
        progress = checkpoint.read_progress(path)
        self.step, self.best, self.best_step = progress.step, progress.best, progress.best_step
        self.seconds, self.stage, self.mastery = progress.seconds, progress.stage, progress.mastery
        for moments in self.optimizer.state.values():
            moments["step"].fill_(float(self.step))

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        """Swap the EMA weights into the model for the block; without an EMA, do nothing."""
        trained = {name: self.distributed.parameters[name].detach().clone() for name in self.ema}
        self.distributed.copy_weights(self.ema)
        try:
            yield
        finally:
            self.distributed.copy_weights(trained)

    def full_model(self) -> LanguageModel:
        """The unsharded model on the CPU, with EMA weights if there are any.

        Every rank must call this. Rank zero gets the weights, the others a model on the meta device.
        """
        source: dict[str, Any] = self.ema or self.distributed.parameters
        weights = {}
        with torch.no_grad():
            for name, tensor in source.items():
                gathered = full_tensor(tensor.detach())
                if self.distributed.world.is_rank_zero:
                    weights[name] = gathered.cpu()
        model = build_meta(self.distributed.module.config)
        model.load_state_dict(weights, strict=False, assign=True)
        return model.eval()


def fail_together(work: Callable[[], None], folder: Path, step: int, world: World) -> None:
    """Call `work` on every rank. If it fails on one, raise on all, so that no rank waits forever."""
    failure = ""
    try:
        work()
    except (OSError, SafetensorError, RuntimeError) as error:
        failure = str(error)
    if world.any(bool(failure)):
        steps = checkpoint_steps(folder)
        previous = f"{checkpoint_name(steps[-1])} is intact" if steps else "no checkpoint was written yet"
        raise TrainingError(
            f"saving step {step} in {folder} failed ({failure or 'on another rank'}); {previous}; "
            f"free some space or make it writable, then resume"
        )


def _nothing() -> None: ...


@config
class TensorPart:
    """Rows of a tensor in one file. A tensor without axes has one row."""

    file: str
    first: int
    rows: int


@config
class TensorEntry:
    """A tensor and the parts that cover it, in order."""

    shape: tuple[int, ...]
    parts: tuple[TensorPart, ...]


def write_shard(folder: Path, tensors: Mapping[str, Tensor], rank: int) -> None:
    """Write the local tensors of a rank. The file's metadata stores the full shape and the first row of each."""
    local_tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    for name, tensor in tensors.items():
        local, first = _local(tensor)
        if _rows(local.shape):  # the last ranks may hold no row at all
            local_tensors[name] = local.detach().cpu().contiguous()
            metadata[name] = json.dumps([list(tensor.shape), first])
    save_file(local_tensors, folder / f"shard-{rank:05d}.safetensors", metadata=metadata)


def write_index(folder: Path) -> None:
    """Write the index from the headers of the shards. Call on one rank, after all shards are written."""
    index: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("shard-*.safetensors")):
        with safe_open(path, "pt") as shard:
            for name, place in shard.metadata().items():
                shape, first = safe_json.loads(place)
                rows = _rows(shard.get_slice(name).get_shape())
                entry = index.setdefault(name, {"shape": shape, "parts": []})
                entry["parts"].append({"file": path.name, "first": first, "rows": rows})
    (folder / INDEX).write_text(json.dumps(index) + "\n")


def read_index(folder: Path) -> dict[str, TensorEntry]:
    """Read and check the index: the parts of every tensor must cover it exactly."""
    try:
        entries = safe_json.load(folder / INDEX)
        index = {name: from_dict(TensorEntry, entry) for name, entry in entries.items()}
    except (OSError, ValueError, AttributeError, ConfigError) as error:
        raise DataError(
            f"{folder / INDEX} does not describe training state ({error}); remove the checkpoint"
        ) from error
    for name, entry in index.items():
        covered = 0
        for part in entry.parts:
            if part.first != covered or part.rows < 1 or Path(part.file).name != part.file:
                break
            covered += part.rows
        if covered != _rows(entry.shape):
            raise DataError(f"{folder / INDEX}: the parts of {name} do not cover it; remove the checkpoint")
    return index


@torch.no_grad()
def read_tensors(folder: Path, index: Mapping[str, TensorEntry], tensors: Mapping[str, Tensor]) -> None:
    """Fill `tensors` in place; each rank reads the rows it holds."""
    with ExitStack() as stack:
        shards: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if name not in index or index[name].shape != tuple(tensor.shape):
                problem = f"has shape {index[name].shape}" if name in index else "is missing"
                raise DataError(f"{folder}: {name} {problem}, the model needs {tuple(tensor.shape)}; start a new run")
            local, first = _local(tensor)
            last = first + _rows(local.shape)
            for part in index[name].parts:
                low, high = max(first, part.first), min(last, part.first + part.rows)
                if low >= high:
                    continue
                try:
                    if part.file not in shards:
                        open_regular(folder / part.file).close()  # safe_open would wait for the writer of a pipe
                        shards[part.file] = stack.enter_context(safe_open(folder / part.file, "pt"))
                    shard = shards[part.file]
                    stored = shard.get_slice(name)[low - part.first : high - part.first] if local.ndim else None
                    rows = shard.get_tensor(name) if stored is None else stored
                except (OSError, SafetensorError, IndexError) as error:
                    raise DataError(f"{folder / part.file} cannot be read ({error}); remove the checkpoint") from error
                target = local[low - first : high - first] if local.ndim else local
                if rows.shape != target.shape or rows.dtype != target.dtype:
                    raise DataError(f"{folder / part.file} does not hold what {INDEX} says of {name}; start a new run")
                target.copy_(rows)


def _local(tensor: Tensor) -> tuple[Tensor, int]:
    """The rows of a tensor that this rank holds, and the number of the first."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    assert tensor.placements == (Shard(0),), tensor.placements
    rows = -(-tensor.shape[0] // tensor.device_mesh.size())
    return tensor.to_local(), min(rows * tensor.device_mesh.get_local_rank(), tensor.shape[0])


def _rows(shape: Any) -> int:
    return int(shape[0]) if len(shape) else 1
