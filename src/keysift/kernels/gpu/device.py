"""Devices of the Triton kernels: launching, constants, precision and number of processors. Imports triton."""

from contextlib import nullcontext
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from keysift.kernels.gpu.configurations import Configuration


def constant(value: Any) -> Any:
    """A value that the kernel is compiled for."""
    return tl.constexpr(value)


def precision(x: Tensor) -> str:
    """Precision of products of fp32 numbers.

    Scores decide which weights are exactly zero, so TF32 is not enough. NVIDIA's tensor cores multiply in three TF32
    products, with fp32's accuracy up to a few units in the last place. AMD's multiply fp32 numbers.
    """
    return "ieee" if torch.version.hip else "tf32x3"


def processors(x: Tensor) -> int:
    """Number of multiprocessors. An interpreter has none; it is treated as a small device."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2


def options(config: Configuration | None) -> dict[str, Any]:
    """Triton's options of a launch."""
    sizes = {"num_warps": 4} if config is None else {"num_warps": config.warps, "num_stages": config.stages}
    # Fused multiply-adds: the default of Triton up to 3.9, which warns if it is not given.
    return {**sizes, "enable_fp_fusion": True}


def launch(kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], config: Configuration | None = None) -> None:
    """Run a kernel on the device of its first tensor."""
    if grid[0] == 0:
        return
    first = arguments[0]
    tensor = first if isinstance(first, Tensor) else first.data
    with torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext():
        kernel[grid](*arguments, **options(config))
