"""Helpers of the compiled CPU operators: declined calls, and the segments and offset to pass."""

from collections.abc import Callable

import torch
from torch import Tensor

from keysift.kernels.call import Call, has_tangents
from keysift.kernels.cpu import library
from keysift.kernels.positions import Positions
from keysift.kernels.transforms import in_function_transform

LARGEST_OFFSET = 1 << 59  # so that sums of positions fit into int64


def unsupported_tensor(q: Tensor) -> str | None:
    """Reason why the library does not support the device or dtype of q, or None."""
    if q.device.type != "cpu":
        return f"the tensors are on {q.device.type}"
    return None if q.dtype in library.DTYPES else f"{q.dtype} is not supported"


def declines(
    call: Call,
    return_weights: bool,
    unsupported: Callable[[Tensor], str | None] = unsupported_tensor,
    *,
    takes_slopes: bool = False,
) -> str | None:
    """Reason why no compiled operator can run the call, or None. `unsupported` judges the device and dtype of q."""
    if return_weights:
        return "it never forms the weights"
    reason = unsupported(call.q)
    if reason is not None:
        return reason
    if call.keep is not None or call.bias is not None or (call.slopes is not None and not takes_slopes):
        return "it does not support a keep mask or a bias"
    if call.kept:
        return "it does not support keys that are kept beside a window"
    if in_function_transform():
        return "torch.func cannot transform a compiled operator"
    if has_tangents(call):
        return "it has no forward-mode derivative"
    return unsupported_positions(call.positions)


def unsupported_positions(positions: Positions) -> str | None:
    """Reason why the library does not support the positions, or None."""
    if not positions.consecutive and positions.segments is None:
        return "it needs consecutive positions or segments, not explicit positions"
    if abs(positions.offset) > LARGEST_OFFSET:
        return f"queries and keys are more than {LARGEST_OFFSET:.0e} positions apart"
    return None


def mask_arguments(call: Call) -> tuple[Tensor | None, int, int]:
    """Segments, offset and window (0: none) of the call. Without a causal mask, queries come after the last key."""
    positions = call.mask_positions
    segments, offset = positions.segments, positions.offset
    if call.causal:
        return segments, offset, call.mask_window or 0
    if segments is None:
        return None, call.k.shape[2], 0
    return torch.cat((segments[:, :5], segments[:, 4:5]), dim=1), 0, 0
