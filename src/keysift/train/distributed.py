"""One process or many, the same code: who am I, how is the model shared, what do we agree on.

Started by torchrun (RANK, WORLD_SIZE, LOCAL_RANK in the environment): gloo on CPU, nccl on CUDA.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from keysift.core.errors import ConfigError, KeysiftError, UnsupportedError
from keysift.models.language import LanguageModel
from keysift.train.config import Strategy

# While the first process tokenises a large corpus, the others wait for it.
_PATIENCE = timedelta(hours=12)


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Added over all processes, in fp64."""
        if self.size == 1:
            return list(numbers)
        wide = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(wide)
        return [float(number) for number in wide.tolist()]

    def any(self, wish: bool) -> bool:
        return self.sum(float(wish))[0] > 0

    def alike(self, value: str) -> bool:
        """Whether every process has the same."""
        if self.size == 1:
            return True
        values: list[str | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return len(set(values)) == 1

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def first_does(self, work: Callable[[], object]) -> None:
        """The first process works and the others wait; if it refuses, all refuse."""
        if self.size == 1:
            work()
            return
        box: list[KeysiftError | None] = [None]
        if self.first:
            try:
                work()
            except KeysiftError as error:
                box = [error]
        dist.broadcast_object_list(box, src=0, device=self.device)
        if box[0] is not None:
            raise box[0]


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The processes torchrun started, or this one alone."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = find_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size > 1:
        if place.type == "cuda":
            torch.cuda.set_device(place)
        dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield World(rank, size, place)
    finally:
        if size > 1:
            # What a shared model holds of the group goes first, so that the group's threads end here. One that outlives
            # this may still let go of the last tensor it was given, and if Python is ending by then, it aborts.
            gc.collect()
            dist.destroy_process_group()


def find_device(device: str, local_rank: int) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
        float(torch.zeros((), device=place))  # meta has no numbers, and a GPU may be there but not usable
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device {device!r} cannot be used here ({error}); try cpu") from error
    return torch.device("cuda", local_rank) if place.type == "cuda" and place.index is None else place


class Shared:
    """A model as its processes hold it: `model` is called for logits, `parameters` have the plain model's names."""

    def __init__(self, model: LanguageModel, strategy: Strategy, world: World) -> None:
        chosen = ("ddp" if world.size > 1 else "none") if strategy == "auto" else strategy
        if chosen == "none" and world.size > 1:
            raise UnsupportedError(f"strategy none is for one process, got {world.size}; use ddp or fsdp2")
        if chosen != "none" and not dist.is_initialized():
            raise UnsupportedError(f"strategy {chosen} needs torchrun with 2 processes or more; use none")
        self.strategy = chosen
        self.world = world
        self.plain = model
        self.model: nn.Module = model
        self._mesh: DeviceMesh | None = None
        if chosen == "ddp":
            self.model = DistributedDataParallel(model)
        elif chosen == "fsdp2":
            self._mesh = _shard(model, world)
        self.parameters = dict(model.named_parameters())

    def accumulating(self, last: bool) -> AbstractContextManager[object]:
        """Gradients are exchanged in the last accumulation step only."""
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        return nullcontext()

    @torch.no_grad()
    def set(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite parameters by name."""
        for name, value in values.items():
            self.parameters[name].copy_(value)
        if isinstance(self.model, FSDPModule):
            # The outermost module keeps what it gathered in a forward pass without backward; that is now out of date.
            self.model.reshard()

    def close(self) -> None:
        """Let go of the process group; see `joined`."""
        if self._mesh is not None:
            # torch remembers operations on shards, and with them the mesh, for as long as Python runs.
            self._mesh._pg_registry.clear()

    def finish(self) -> None:
        """Average the gradients of what fully_shard leaves whole, as it does with what it shards."""
        if self.strategy == "fsdp2":
            for parameter in self.parameters.values():
                if not isinstance(parameter, DTensor) and parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad.div_(self.world.size)


def _shard(model: LanguageModel, world: World) -> DeviceMesh:
    mesh = dist.device_mesh.init_device_mesh(world.device.type, (world.size,))
    # fully_shard cannot cut a tensor without axes; these few numbers stay whole everywhere.
    scalars = {parameter for parameter in model.parameters() if parameter.ndim == 0}
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=scalars)
    fully_shard(model, mesh=mesh, ignored_params=scalars)
    return mesh


def whole(tensor: Tensor) -> Tensor:
    """The full tensor; every process must ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
