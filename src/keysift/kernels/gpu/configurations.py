"""Block sizes, warps and pipeline stages of each kernel, by the padded widths and the size of the dtype.

`keysift.kernels.gpu.report` compiles every configuration for several devices and reads registers, shared memory and
instructions from the binaries; tests/gpu rejects spills. No configuration was timed on a device.
"""

from typing import NamedTuple

import torch

# Padded widths of keys and values; a call takes the first pair that holds its own.
WIDTHS = ((16, 64), (64, 64), (128, 128), (128, 256))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Configuration(NamedTuple):
    """Queries and keys of a block, warps of a program, and stages of its loads."""

    queries: int
    keys: int
    warps: int
    stages: int


def padded(key_width: int, value_width: int) -> tuple[int, int] | None:
    """Padded widths, or None if the widths are not supported."""
    return next(((k, v) for k, v in WIDTHS if key_width <= k and value_width <= v), None)


def forward(pad_k: int, pad_v: int, dtype: torch.dtype) -> Configuration:
    if dtype == torch.float32:
        return Configuration(64 if pad_k < 128 else 16, 16, 8 if pad_k == 64 else 4, 2)
    return Configuration(64, 16 if pad_v == 256 else 32, 4 if pad_v == 64 else 8, 2)


def split_forward(pad_k: int, pad_v: int, dtype: torch.dtype) -> Configuration:
    """For few queries: short blocks of queries, the smallest that a tensor core multiplies."""
    return Configuration(16, 16 if dtype == torch.float32 and pad_v == 256 else 32, 4, 2)


def backward_queries(pad_k: int, pad_v: int, dtype: torch.dtype) -> Configuration:
    if dtype == torch.float32:
        return Configuration(64 if pad_k == 16 else 16, 16, 4, 2)
    return Configuration({64: 64, 128: 32, 256: 16}[pad_v], 32 if pad_k == 16 else 16, 4, 2)


def backward_keys(pad_k: int, pad_v: int, dtype: torch.dtype) -> Configuration:
    if dtype == torch.float32:
        return Configuration(16, 32 if pad_k == 16 else 16, 4 if pad_k == 16 else 8, 2)
    return Configuration(16, {16: 64, 64: 32}.get(pad_k, 16), 8 if pad_v == 256 else 4, 2)
