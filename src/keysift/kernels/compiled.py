"""What operators share: how torch is told of them, which calls compiled ones can run, and who sees whom there."""

from typing import Any

import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.kernels import native
from keysift.kernels.call import Call, has_tangents, transformed

FARTHEST = 1 << 59  # the library adds positions in 64 bits
_TYPES = {Tensor: "Tensor", Tensor | None: "Tensor?", int: "int", float: "float", bool: "bool"}


def schema(inputs: type[tuple[Any, ...]]) -> str:
    """Arguments of an operator as torch spells them, from a NamedTuple. A compiled graph may leave an offset open."""
    told = ((name, "SymInt" if name == "offset" else _TYPES[kind]) for name, kind in inputs.__annotations__.items())
    return ", ".join(f"{kind} {name}" for name, kind in told)


def unreadable(q: Tensor) -> str | None:
    """Why the library cannot read such a tensor."""
    if q.device.type != "cpu":
        return f"the tensors are on {q.device.type}"
    return None if q.dtype in native.DTYPES else f"{q.dtype} is not supported"


def declines(call: Call, return_weights: bool) -> str | None:
    if return_weights:
        return "it never forms the weights"
    wrong = unreadable(call.q)
    if wrong is not None:
        return wrong
    if call.keep is not None or call.bias is not None:
        return "a keep mask or a bias was given"
    if transformed():
        return "it is a compiled operator, which torch.func cannot transform"
    if has_tangents(call):
        return "it has no forward-mode derivative"
    if not call.positions.consecutive and call.positions.pieces is None:
        return "positions were given one by one, not as runs that count up"
    if abs(call.positions.offset) > FARTHEST:
        return f"queries and keys are more than {FARTHEST:.0e} positions apart"
    return None


def standing(call: Call) -> tuple[Tensor | None, int]:
    """Pieces and offset. Where all keys are seen, queries stand after the last key."""
    pieces, offset = call.positions.pieces, call.positions.offset
    if call.causal:
        return pieces, offset
    if pieces is None:
        return None, call.k.shape[2]
    return torch.cat((pieces[:, :5], pieces[:, 4:5]), dim=1), 0


def only_once(ctx: Any, *unused: Tensor) -> tuple[Tensor | None, ...]:
    """The derivative of a backward operator."""
    raise UnsupportedError(
        "the compiled kernel gives first derivatives only; for second ones pass backend='dense', "
        "or run the model within keysift.kernels.attend.only('dense')"
    )
