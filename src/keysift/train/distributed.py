"""Run the same training code on one process or many: process group, distributed model, gradient accumulation.

torchrun starts the processes (RANK, WORLD_SIZE, LOCAL_RANK in the environment): gloo on CPU, nccl on CUDA.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as activation_checkpoint

from keysift.core.errors import ConfigError, KeysiftError, UnsupportedError
from keysift.core.memory import keep_freed_memory
from keysift.models.language_model import LanguageModel
from keysift.train.config import Strategy, TrainConfig

# The other ranks wait while rank zero tokenizes a large corpus.
_TIMEOUT = timedelta(hours=12)


@dataclass(frozen=True)
class World:
    """Rank and device of this process, the number of processes, and collective operations."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def sum(self, *numbers: float) -> list[float]:
        """Sum each number over all ranks, in fp64."""
        if self.size == 1:
            return list(numbers)
        totals = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(totals)
        return [float(total) for total in totals.tolist()]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.sum(float(flag))[0] > 0

    def same_on_all_ranks(self, value: str) -> bool:
        if self.size == 1:
            return True
        values: list[str | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return len(set(values)) == 1

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def on_rank_zero(self, work: Callable[[], object]) -> None:
        """Call `work` on rank zero while the other ranks wait. A KeysiftError is raised on every rank."""
        if self.size == 1:
            work()
            return
        errors: list[KeysiftError | None] = [None]
        if self.is_rank_zero:
            try:
                work()
            except KeysiftError as error:
                errors = [error]
        dist.broadcast_object_list(errors, src=0, device=self.device)
        if errors[0] is not None:
            raise errors[0]


@contextmanager
def process_group(device: str) -> Iterator[World]:
    """Prepare this process, and the process group if torchrun started several, and yield its World."""
    keep_freed_memory()
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    resolved = resolve_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size > 1:
        if resolved.type == "cuda":
            torch.cuda.set_device(resolved)
        dist.init_process_group("nccl" if resolved.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield World(rank, size, resolved)
    finally:
        if size > 1:
            # Free everything that refers to the group first, so that its threads end here. A thread that outlives the
            # group may release its last tensor while Python shuts down, which aborts the process.
            gc.collect()
            dist.destroy_process_group()


def resolve_device(device: str, local_rank: int) -> torch.device:
    """The torch device of a rank. `auto` prefers CUDA. Raises ConfigError if the device cannot hold a tensor."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device(device)
        float(torch.zeros((), device=resolved))  # fails for meta, and for a GPU that is present but not usable
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"device {device!r} cannot be used here ({error}); try cpu") from error
    return torch.device("cuda", local_rank) if resolved.type == "cuda" and resolved.index is None else resolved


class DistributedModel:
    """A model under a strategy (none, ddp or fsdp2).

    model        the wrapped module; call it for logits
    module       the LanguageModel inside the wrapper
    parameters   parameters by their names in the unwrapped model
    """

    def __init__(self, model: LanguageModel, strategy: Strategy, world: World) -> None:
        if strategy == "auto":
            strategy = "ddp" if world.size > 1 else "none"
        if strategy == "none" and world.size > 1:
            raise UnsupportedError(f"strategy none is for one process, got {world.size}; use ddp or fsdp2")
        if strategy != "none" and not dist.is_initialized():
            raise UnsupportedError(f"strategy {strategy} needs torchrun with 2 processes or more; use none")
        self.strategy = strategy
        self.world = world
        self.module = model
        self.model: nn.Module = model
        self._mesh: DeviceMesh | None = None
        if strategy == "ddp":
            self.model = DistributedDataParallel(model)
        elif strategy == "fsdp2":
            self._mesh = _shard(model, world)
        self.parameters = dict(model.named_parameters())

    def gradient_sync(self, *, last: bool) -> AbstractContextManager[object]:
        """Context of one accumulation step. Gradients are synchronized in the last step only."""
        if isinstance(self.model, DistributedDataParallel) and not last:
            return self.model.no_sync()
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def average_unsharded_gradients(self) -> None:
        """Average the gradients of unsharded parameters over ranks. fully_shard averages the sharded ones itself."""
        if self.strategy == "fsdp2":
            for parameter in self.parameters.values():
                if not isinstance(parameter, DTensor) and parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad.div_(self.world.size)

    @torch.no_grad()
    def copy_weights(self, values: Mapping[str, Tensor]) -> None:
        """Overwrite parameters by name."""
        for name, value in values.items():
            self.parameters[name].copy_(value)
        if isinstance(self.model, FSDPModule):
            # After a forward pass without backward, the root keeps its gathered parameters; that copy is now stale.
            self.model.reshard()

    def close(self) -> None:
        """Drop references to the process group, so that `process_group` can destroy it."""
        if self._mesh is not None:
            # torch caches DTensor operations, and with them the mesh, until the interpreter exits.
            self._mesh._pg_registry.clear()


def _shard(model: LanguageModel, world: World) -> DeviceMesh:
    mesh = dist.device_mesh.init_device_mesh(world.device.type, (world.size,))
    # fully_shard cannot shard 0-dim tensors, so every rank keeps a full copy of these scalars.
    scalars = {parameter for parameter in model.parameters() if parameter.ndim == 0}
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=scalars)
    fully_shard(model, mesh=mesh, ignored_params=scalars)
    return mesh


def distribute(model: LanguageModel, config: TrainConfig, world: World) -> DistributedModel:
    """Move the model to the device, apply activation checkpointing and torch.compile, and wrap it for the strategy."""
    model.to(world.device)
    if config.recompute:
        for layer in model.layers:
            layer.forward = partial(activation_checkpoint, layer.forward, use_reentrant=False)
    if config.compile:
        model.compile()
    return DistributedModel(model, config.strategy, world)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor. A collective operation: every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def accumulation_steps(config: TrainConfig, world: World) -> int:
    """Micro-batches per rank and step, such that every step reads batch_tokens over all ranks."""
    if config.sequences % world.size:
        raise ConfigError(
            f"{config.sequences} sequences per step cannot be divided among {world.size} processes; "
            f"make batch_tokens a multiple of {config.context * world.size}"
        )
    per_rank = config.sequences // world.size
    micro_batch = max(1, config.micro_tokens // config.context)
    return next(n for n in range(1, per_rank + 1) if per_rank % n == 0 and per_rank // n <= micro_batch)


def autocast(config: TrainConfig, world: World) -> AbstractContextManager[Any]:
    """The autocast context of the configured precision; `auto` uses bf16 on GPUs that support it."""
    cuda = world.device.type == "cuda"
    if config.precision == "bf16" and cuda and not torch.cuda.is_bf16_supported():
        raise UnsupportedError("this GPU does not support bf16; use --precision fp32")
    if config.precision == "bf16" or (config.precision == "auto" and cuda and torch.cuda.is_bf16_supported()):
        return torch.autocast(world.device.type, torch.bfloat16)
    return nullcontext()
