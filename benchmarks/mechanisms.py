"""What each mechanism costs through the dense definition, as a multiple of softmax on the same path.

    python -m benchmarks.mechanisms [--json]

Forward and backward, interleaved with softmax run by run, median of the ratios. A mechanism whose fp32 answer strays
from its fp64 answer is not timed.
"""

import argparse
import json
import statistics
import sys
import time

import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism


def inputs(mechanism: Mechanism, dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 8 * mechanism.maps, 256, 32), (1, 8 * mechanism.key_maps, 256, 32), (1, 8, 256, 32))
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes
    )


def seconds(mechanism: Mechanism) -> float:
    q, k, v = inputs(mechanism, torch.float32)
    start = time.perf_counter()
    attend(mechanism, q, k, v, backend="dense").sum().backward()
    return time.perf_counter() - start


def strays(mechanism: Mechanism) -> bool:
    single = attend(mechanism, *inputs(mechanism, torch.float32), backend="dense")
    double = attend(mechanism, *inputs(mechanism, torch.float64), backend="dense")
    return bool((single - double).abs().max() > 1e-3 * double.abs().max())


def measure(repeats: int = 15) -> list[dict[str, object]]:
    softmax = MECHANISMS.find("softmax")
    rows: list[dict[str, object]] = []
    for mechanism in MECHANISMS:
        if strays(mechanism):
            rows.append({"mechanism": mechanism.name, "ratio": None, "why": "fp32 strays from fp64"})
            continue
        seconds(mechanism), seconds(softmax)
        ratios = [seconds(mechanism) / seconds(softmax) for _ in range(repeats)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append({"mechanism": mechanism.name, "ratio": round(middle, 2), "iqr": [round(low, 2), round(high, 2)]})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    rows = measure()
    if parser.parse_args().json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    sys.stdout.write("forward + backward, multiples of softmax through the same dense path\n")
    for row in rows:
        sys.stdout.write(f"{row['mechanism']:<30} {row['ratio'] if row['ratio'] is not None else row['why']}\n")


if __name__ == "__main__":
    main()
