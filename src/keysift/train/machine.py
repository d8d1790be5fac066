"""What a machine holds and what it can do."""

import resource
import sys
import time

import torch


def memory_bytes(device: torch.device) -> int:
    """The most this process has held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def peak_flops(device: torch.device, precision: torch.dtype) -> float:
    """What a large matrix product reaches here in fp32 or in `precision`, in FLOP/s: the best of five of each."""
    return max(_product_flops(device, dtype) for dtype in {torch.float32, precision})


def _product_flops(device: torch.device, dtype: torch.dtype) -> float:
    size = 4096 if device.type == "cuda" else 768
    left = torch.ones(size, size, device=device, dtype=dtype)
    best = 0.0
    for _ in range(5):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        left @ left
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best
