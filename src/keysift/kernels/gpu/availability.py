"""Whether the Triton kernels can run: on this machine, and for a call. Does not import triton.

The first call with a dtype and widths compiles its kernels on a small problem. If that fails, the backend declines such
calls from then on, and one warning names the device and the error.
"""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

from keysift.kernels.backend import Code, Unavailable
from keysift.kernels.call import Call
from keysift.kernels.cpu import operators
from keysift.kernels.gpu.configurations import DTYPES, MOST_THREADS, SMALLEST_BLOCK, WIDTHS, padded

DEVICE_TYPES = ["cuda"]  # torch names ROCm devices cuda as well. Tests add cpu, for Triton's interpreter.
LARGEST_LENGTH = 1 << 30  # so that sums of two lengths fit into int32
LARGEST_GRID = 65_535  # of the axis that counts heads
# HIP starts fewer than 2^32 threads along an axis.
LARGEST_ROWS = 1 << 29  # of all heads: the kernels `lengths` start 8 threads per row
LARGEST_BLOCKS = (1 << 32) // MOST_THREADS  # of tokens, in all batch rows: one program each

_missing: list[Unavailable | None] = []
_failures: dict[tuple[object, ...], str | None] = {}


def unavailable() -> Unavailable | None:
    """Why the kernels cannot run on this machine, or None. Examined once."""
    if not _missing:
        _missing.append(_examine())
    return _missing[0]


def _examine() -> Unavailable | None:
    if find_spec("triton") is None:
        return Unavailable(Code.NO_TRITON, "triton is not installed; pip install 'keysift[triton]' installs it")
    if "cpu" not in DEVICE_TYPES and not torch.cuda.is_available():
        return Unavailable(Code.NO_DEVICE, "torch finds no CUDA or ROCm device")
    return None


def unsupported_tensor(q: Tensor) -> str | None:
    """Reason why the kernels do not support the device or dtype of q, or None."""
    if q.device.type not in DEVICE_TYPES:
        return f"the tensors are on {q.device.type}"
    return None if q.dtype in DTYPES else f"{q.dtype} is not supported"


def unsupported_sizes(call: Call) -> str | None:
    """Reason why the kernels do not support the sizes of a call, or None."""
    q, v, segments = call.q, call.v, call.positions.segments
    if padded(q.shape[3], v.shape[3]) is None:
        largest = "{} and value widths up to {}".format(*WIDTHS[-1])
        return f"it supports key widths up to {largest}, not {q.shape[3]} and {v.shape[3]}"
    if max(q.shape[2], v.shape[2]) > LARGEST_LENGTH:
        return f"it supports {LARGEST_LENGTH} queries and keys, not {max(q.shape[2], v.shape[2])}"
    if q.shape[1] > LARGEST_GRID:
        return f"it supports {LARGEST_GRID} heads, not {q.shape[1]}"
    tokens = q.shape[0] * max(q.shape[2], v.shape[2])
    blocks = tokens // SMALLEST_BLOCK + (q.shape[0] if segments is None else len(segments))
    if blocks >= LARGEST_BLOCKS:
        return f"it supports fewer than {LARGEST_BLOCKS} blocks of {SMALLEST_BLOCK} tokens, not {blocks}"
    rows = tokens * q.shape[1]
    return f"it supports fewer than {LARGEST_ROWS} rows of all heads, not {rows}" if rows >= LARGEST_ROWS else None


Probe = Callable[[torch.device, torch.dtype, int, int], None]


def declines(call: Call, return_weights: bool, probe: Probe) -> str | None:
    """Reason why the kernels cannot run the call, or None. `probe` compiles and runs them on a small problem."""
    reason = operators.declines(call, return_weights, unsupported_tensor)
    if reason is None:
        reason = unsupported_sizes(call)
    return failure(call.q, call.q.shape[3], call.v.shape[3], probe) if reason is None else reason


def failure(like: Tensor, key_width: int, value_width: int, probe: Probe) -> str | None:
    """Why the kernels do not run with a device, dtype and widths, or None. Tried once for each."""
    key = (probe, like.device, like.dtype, padded(key_width, value_width))
    # A compiled graph cannot contain the attempt. What is known still counts.
    if key not in _failures and not torch.compiler.is_compiling():
        _failures[key] = None
        _failures[key] = _attempt(like.device, like.dtype, key_width, value_width, probe)
    return _failures.get(key)


def _attempt(device: torch.device, dtype: torch.dtype, key_width: int, value_width: int, probe: Probe) -> str | None:
    try:
        with torch.inference_mode(False), torch.no_grad():
            probe(device, dtype, key_width, value_width)
    except Exception as error:  # compilers raise many types, and a backend that fails must not end a run
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        reason = f"its kernels do not run on {name} in {dtype} ({type(error).__name__}: {str(error).strip()[:300]})"
        warnings.warn(f"keysift runs torch's operators instead of its Triton kernels: {reason}", stacklevel=2)
        return reason
    return None
