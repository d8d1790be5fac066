"""Memory of a forward and backward pass: what autograd saves is counted in real layers, the rest follows from sizes.

Saved tensors are counted with hooks in models of one and two layers of the planned width, on two short texts. The
differences give the bytes of a layer per token, and those that do not depend on the number of tokens. This runs the
code of training, so it needs no formula per architecture, and at most the memory of two layers. Tensors are counted in
fp32: an upper bound for bf16 under autocast.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch.autograd.graph import saved_tensors_hooks

from keysift.core.errors import UnsupportedError
from keysift.data.batches import Batch
from keysift.kernels.attend import force_backend
from keysift.models.architecture import Arch, MultiscreenArch
from keysift.models.losses import batch_loss
from keysift.models.registry import build, configure

_LENGTHS = (128, 256)
_VOCABULARY = 64
_TORCH_BACKENDS = ("sdpa", "blockwise", "by_rows")


@dataclass(frozen=True)
class Saved:
    """Bytes that autograd keeps between the forward and the backward pass: per token, and for any number of tokens."""

    per_token: float
    constant: float

    def __sub__(self, other: "Saved") -> "Saved":
        return Saved(self.per_token - other.per_token, self.constant - other.constant)


@dataclass(frozen=True)
class Footprint:
    """Bytes that one layer keeps, and those of the rest of the model, without logits."""

    layer: Saved
    rest: Saved
    layer_input: float  # per token: all that activation checkpointing keeps

    def activations(self, tokens: int, depth: int, vocab_size: int, *, recompute: bool) -> float:
        """Bytes of a model at the start of its backward pass; with recomputation, while its last layer runs again.

        Three arrays of fp32 logits exist then: log-probabilities, their gradient, and the gradient of the logits.
        """
        layers = 1 if recompute else depth
        inputs = (depth - 1) * self.layer_input if recompute else 0.0
        per_token = layers * self.layer.per_token + inputs + self.rest.per_token
        return tokens * (per_token + 12 * vocab_size) + layers * self.layer.constant + self.rest.constant


def measure_footprint(arch: Arch, *, compiled: bool) -> Footprint:
    """Count what the layers save: with the compiled kernels of this CPU if they apply, or with the torch backends."""
    one, two = (_saved(replace(arch, depth=depth), compiled=compiled) for depth in (1, 2))
    layer = two - one
    return Footprint(layer=layer, rest=one - layer, layer_input=4.0 * arch.width)


def _saved(arch: Arch, *, compiled: bool) -> Saved:
    backend = None if compiled else _torch_backend(arch)
    with nullcontext() if backend is None else force_backend(backend):
        short, long = (_count_saved(arch, length) for length in _LENGTHS)
    per_token = (long - short) / (_LENGTHS[1] - _LENGTHS[0])
    return Saved(per_token, short - per_token * _LENGTHS[0])


def _torch_backend(arch: Arch) -> str:
    """The torch backend that `attend` prefers for this model where no compiled kernel applies, as on a GPU."""
    for name in _TORCH_BACKENDS[:-1]:
        try:
            with force_backend(name):
                _count_saved(_small(arch), 8)
        except UnsupportedError:
            continue
        return name
    return _TORCH_BACKENDS[-1]


def _small(arch: Arch) -> Arch:
    return replace(arch, width=8, tiles=1) if isinstance(arch, MultiscreenArch) else replace(arch, width=8 * arch.heads)


def _count_saved(arch: Arch, length: int) -> int:
    """Bytes of the distinct tensors that a forward pass saves, without parameters and log-probabilities."""
    model = build(configure(arch, vocab_size=_VOCABULARY, context=length))
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # keeps them, because a freed storage could give away its address

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage
        return tensor

    tokens = torch.arange(length)[None] % _VOCABULARY
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        batch_loss(model, Batch(inputs=tokens, targets=tokens, rows=(0,)))
    return sum(storage.nbytes() for storage in saved.values()) - 4 * _VOCABULARY * length
