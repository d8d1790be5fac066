"""Search for missed keys: keys that a scan accepts and exact search (docs/search.md) does not.

    python -m keysift.bench.search.missed --pairs 10000000

Keys are drawn so that their scores are within 1e-6 of the threshold in the dtype of the cache, for every dtype and
every instruction set that this machine runs.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import get_args

import torch
from torch import Tensor

from keysift.bench.search.cases import KEY_WIDTH, TileCase, TileKeys, unit_query
from keysift.core.terminal import SafeConsole
from keysift.kernels.cpu import library
from keysift.nn.inference import Search

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NEAR = 1e-6
BATCH = 2**18
ACCEPTANCES = (0.15, 0.3, 0.5, 0.7, 0.85, 0.92, 0.99)
GROUP = 32
SKETCH_SCALE = 127  # kSketchScale of csrc/search_layout.h


def across(q_K: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Unit vectors that are orthogonal to q."""
    drawn = torch.randn(count, KEY_WIDTH, generator=generator, dtype=torch.float64)
    drawn -= (drawn @ q_K)[:, None] * q_K
    lengths: Tensor = drawn.norm(dim=1, keepdim=True)
    return drawn / lengths


def rounded_near(
    q_K: Tensor, keys_XK: Tensor, threshold: float, dtype: torch.dtype, generator: torch.Generator
) -> Tensor:
    """Keys changed so that their scores are within NEAR of the threshold after rounding to the dtype.

    Two channels take up the difference. The second is so small that its rounding does not matter.
    """
    goal = threshold + NEAR * (2 * torch.rand(len(keys_XK), generator=generator, dtype=torch.float64) - 1)
    first, second = q_K.abs().topk(2).indices.tolist()
    keys_XK = keys_XK.clone()
    keys_XK[:, (first, second)] = 0
    keys_XK = keys_XK.to(dtype).double()
    for channel in (first, second):
        for _ in range(4):  # Newton's method for <q, k> = goal |k|
            length = keys_XK.norm(dim=1)
            slope = q_K[channel] - goal * keys_XK[:, channel] / length
            keys_XK[:, channel] -= (keys_XK @ q_K - goal * length) / slope
        keys_XK = keys_XK.to(dtype).double()
    score = keys_XK @ q_K / keys_XK.norm(dim=1)
    return keys_XK[(score - threshold).abs() <= NEAR]


def near_keys(q_K: Tensor, threshold: float, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Keys in all directions at the threshold, with lengths from e^-4 to e^4."""
    keys = threshold * q_K + (1 - threshold**2) ** 0.5 * across(q_K, count, generator)
    keys *= torch.exp(8 * torch.rand(count, 1, generator=generator, dtype=torch.float64) - 4)
    return rounded_near(q_K, keys, threshold, dtype, generator)


def tight_keys(q_K: Tensor, threshold: float, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Keys at the threshold for which the bound of the sketch is nearly an equality: k - k^ is parallel to q."""
    near = threshold * q_K + (1 - threshold**2) ** 0.5 * across(q_K, count, generator)
    sketch = (SKETCH_SCALE * near).round() / SKETCH_SCALE
    b, c = sketch @ q_K, (sketch**2).sum(1) - 1
    e = -b + (b**2 - c).clamp_min(0).sqrt()
    return rounded_near(q_K, sketch + e[:, None] * q_K, threshold, dtype, generator)


def rim_keys(q_K: Tensor, threshold: float, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Clusters that touch the threshold with one key, the one that is nearest to q. The others follow it."""
    side = across(q_K, count // GROUP, generator)
    angle = torch.arccos(torch.tensor(threshold, dtype=torch.float64))
    radius = 0.3 * torch.rand(len(side), 1, generator=generator, dtype=torch.float64)
    key = rounded_near(q_K, angle.cos() * q_K + angle.sin() * side, threshold, dtype, generator)
    centre = (angle + radius).cos() * q_K + (angle + radius).sin() * side
    spread = torch.randn(GROUP - 1, len(side), KEY_WIDTH, generator=generator, dtype=torch.float64)
    others = centre + radius * spread / (2 * KEY_WIDTH**0.5)
    return torch.cat((key, others.flatten(0, 1)))


def twins(q_K: Tensor, threshold: float, count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Each key 64 times, and some zeros."""
    keys = near_keys(q_K, threshold, count // 64, dtype, generator)
    return torch.cat((keys.repeat_interleave(64, 0), torch.zeros(100, KEY_WIDTH, dtype=torch.float64)))


Draw = Callable[[Tensor, float, int, torch.dtype, torch.Generator], Tensor]
KINDS: dict[str, Draw] = {"near": near_keys, "tight": tight_keys, "rim": rim_keys, "twins": twins}


def tiles(pairs: int, dtype: torch.dtype, seed: int = 0) -> Iterator[tuple[str, TileKeys]]:
    """Tiles with keys at the threshold of their first query, until there are enough."""
    generator = torch.Generator().manual_seed(seed)
    drawn, number = 0, 0
    while drawn < pairs:
        kind = list(KINDS)[number % len(KINDS)]
        acceptance = ACCEPTANCES[number % len(ACCEPTANCES)]
        q = torch.randn(KEY_WIDTH, generator=generator).to(dtype).float()
        tile = TileKeys(f"{kind}, r = {acceptance:g}", acceptance, q.expand(32, -1), torch.zeros(1, KEY_WIDTH))
        q_K, threshold = unit_query(tile, dtype)
        keys = KINDS[kind](q_K, threshold, min(BATCH, max(pairs - drawn, 2**12)), dtype, generator)
        order = torch.randperm(len(keys), generator=generator)
        yield kind, TileKeys(tile.name, acceptance, tile.queries, keys[order].float())
        drawn += len(keys)
        number += 1


def count_missed(pairs: int, dtype: torch.dtype, seed: int = 0) -> dict[str, int]:
    """Pairs of query and key, how many a scan accepts, and for each way of search how many it accepts less or more."""
    found = {"pairs": 0, "accepted": 0}
    ways: tuple[Search, ...] = tuple(way for way in get_args(Search) if way not in ("scan", "auto"))
    found |= dict.fromkeys(ways, 0)
    for _, tile in tiles(pairs, dtype, seed):
        expected = accepted(tile, "scan", dtype)
        found["pairs"] += len(tile.keys)
        found["accepted"] += expected
        for way in ways:
            found[way] += abs(expected - accepted(tile, way, dtype))
    return found


def accepted(tile: TileKeys, search: Search, dtype: torch.dtype) -> int:
    """Keys that the second query accepts: some ways of search need one before it."""
    case = TileCase(tile, len(tile.keys), search, value_width=4, dtype=dtype)
    case.decode()
    case.decode()
    return case.counts()["accepted"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m keysift.bench.search.missed", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10**7, help="of query and key, for each instruction set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--isa", help="only this instruction set; the default is all, each in a process of its own")
    options = parser.parse_args(arguments)
    if options.isa is None:
        codes = []
        for isa in library.instruction_sets():
            command = [sys.executable, "-m", "keysift.bench.search.missed", "--isa", isa]
            command += ["--pairs", str(options.pairs), "--seed", str(options.seed)]
            codes.append(subprocess.run(command, check=False, env={**os.environ, "KEYSIFT_ISA": isa}).returncode)
        return max(codes)
    wrong = 0
    for name, dtype in DTYPES.items():
        found = count_missed(-(-options.pairs // len(DTYPES)), dtype, options.seed)
        SafeConsole().print(json.dumps({"isa": options.isa, "dtype": name, **found}), soft_wrap=True)
        wrong += sum(count for key, count in found.items() if key not in ("pairs", "accepted"))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
