"""Block sizes, warps and pipeline stages of each kernel, by the padded widths and the size of the dtype.

`keysift.kernels.gpu.report` compiles every configuration for several devices and reads registers, shared memory and
instructions from the binaries; tests/gpu rejects spills. No configuration was timed on a device.
"""

from typing import NamedTuple

import torch

# Padded widths of keys and values; a call takes the first pair that holds its own.
WIDTHS = ((16, 64), (64, 64), (128, 128), (128, 256))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SMALLEST_BLOCK = 16  # tokens of the blocks that programs are counted by
MOST_THREADS = 512  # of a program: eight of AMD's warps


class Configuration(NamedTuple):
    """Queries and keys of a block, warps of a program, and stages of its loads."""

    queries: int
    keys: int
    warps: int
    stages: int


def padded(key_width: int, value_width: int) -> tuple[int, int] | None:
    """Padded widths, or None if the widths are not supported."""
    return next(((k, v) for k, v in WIDTHS if key_width <= k and value_width <= v), None)


def part(pad_v: int, dtype: torch.dtype) -> int:
    """Channels that `row_products` reads at once. Both TF32 parts of wide fp32 rows would not fit registers."""
    return 32 if dtype == torch.float32 else pad_v


def forward(pad_k: int, pad_v: int, dtype: torch.dtype, precision: str) -> Configuration:
    if dtype == torch.float32:
        if pad_k == 128:
            return Configuration(16, _short(precision), 4, 2)
        return Configuration(64, 16, 8 if pad_k == 64 else 4, 2)
    return Configuration(64, 16 if pad_v == 256 else 32, 4 if pad_v == 64 else 8, 2)


def split_forward(pad_k: int, pad_v: int, dtype: torch.dtype, precision: str) -> Configuration:
    """For few queries: short blocks of queries, the smallest that a tensor core multiplies."""
    if dtype == torch.float32 and pad_v == 256:
        return Configuration(16, 16, 8, 2)
    return Configuration(16, 32, 4, 2)


def backward_queries(pad_k: int, pad_v: int, dtype: torch.dtype, precision: str) -> Configuration:
    if dtype == torch.float32:
        queries, keys = {16: (64, 16), 64: (16, _short(precision)), 128: (16, 16)}[pad_k]
        return Configuration(queries, keys, 8 if pad_v == 256 else 4, 2)
    return Configuration({64: 64, 128: 32, 256: 16}[pad_v], 32 if pad_k == 16 else 16, 4, 2)


def backward_keys(pad_k: int, pad_v: int, dtype: torch.dtype, precision: str) -> Configuration:
    if dtype == torch.float32:
        queries, keys = {16: (_short(precision), 32), 64: (16, 16), 128: (_short(precision), 16)}[pad_k]
        return Configuration(queries, keys, 4 if pad_k == 16 else 8, 2)
    if pad_v == 256:
        return Configuration(16, 16, 8, 1)
    return Configuration(16, {16: 64, 64: 32, 128: 16}[pad_k], 4, 2)


def _short(precision: str) -> int:
    """Columns of the smallest product of fp32 matrices: with TF32 tensor cores (NVIDIA), or fp32 ones (AMD)."""
    return 8 if precision == "tf32x3" else 16
