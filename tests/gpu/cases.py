"""Cases of the screening kernels: shapes, windows, positions and ablations, drawn from a seed."""

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from keysift.kernels.positions import Positions
from keysift.mechanisms.screening import SCREENING, prepare_without_mipe
from keysift.mechanisms.spec import Mechanism

INF = math.inf
DRAWS = 3  # of the inputs of a case: plain torch may compute one number exactly by chance
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 70, 90)  # around the sizes of blocks
WINDOWS = (0.3, 1.0, 2.5, 9.0, 17.0, 40.25, 100.0, 255.5, 257.0, INF)
KEY_WIDTHS = (2, 8, 16, 20, 64, 128)
VALUE_WIDTHS = (3, 16, 24, 64, 128, 200)  # with one channel, gradients of values are zero
WITHOUT_MIPE = replace(SCREENING, name="without_mipe", prepare=(prepare_without_mipe,))
MECHANISMS = (SCREENING, SCREENING, SCREENING, WITHOUT_MIPE, replace(SCREENING, name="without_tanh", finish=()))


@dataclass(frozen=True)
class Case:
    """One call: mechanism, several draws of the inputs in fp64, and options of `attend`."""

    mechanism: Mechanism
    draws: tuple[dict[str, Tensor], ...]
    options: dict[str, Any]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.draws[0]


def _positions(random: Random, rows: int, queries: int) -> Positions:
    """Positions of each kind that the kernels support."""
    kind = random.randrange(7)
    if kind == 0:
        return Positions.counted(queries, queries + random.choice((0, 1, 30, 64)), start=random.choice((0, 10**7)))
    if kind == 1:  # fewer keys than queries
        return Positions.counted(queries, max(1, queries - random.choice((1, 5, 40))))
    if kind == 2:  # a gap between the last key and the first query
        keys = random.choice((1, 20, 65))
        return Positions(queries=queries, keys=keys, first=keys + random.choice((0, 7, 300)), key_first=0)
    if kind == 3:
        lengths = [[random.randint(1, queries)] for _ in range(rows)]
        for row in lengths:
            while sum(row) < queries and random.random() < 0.7:
                row.append(random.randint(1, queries - sum(row)))
        return Positions.packed(lengths, queries)
    if kind == 4:
        return Positions.padded([random.randrange(queries + 1) for _ in range(rows)], queries)
    if kind == 5:  # rows of a cache, each with its own number of keys
        counts = [queries + random.randrange(40) for _ in range(rows)]
        starts = [random.randrange(1000) for _ in range(rows)]
        ends = [start + count - queries for start, count in zip(starts, counts, strict=True)]
        tokens = Positions.padded([0] * rows, queries, start=ends)
        return tokens.with_cached_keys(starts, counts, max(counts))
    return Positions.counted(queries)


def draw(seed: int) -> Case:
    """A case from a seed."""
    random = Random(seed)
    queries, groups, group = random.choice(LENGTHS), random.choice((1, 1, 2)), random.choice((1, 1, 2, 3))
    rows = 1 if queries > 33 else random.choice((1, 2))
    positions = _positions(random, rows, queries)
    wide = random.random() < 0.25
    width, values = (random.choice(sizes[3:] if wide else sizes[:4]) for sizes in (KEY_WIDTHS, VALUE_WIDTHS))
    mechanism, heads = random.choice(MECHANISMS), groups * group
    windows = [random.choice(WINDOWS) for _ in range(heads)]
    scalars = {"window": windows, "acceptance": [random.choice((0.3, 0.7, 0.9, 1.0)) for _ in windows]}
    if random.random() < 0.3 or mechanism is WITHOUT_MIPE:
        scalars["effective_window"] = [random.choice((window, INF)) for window in windows]

    def tensors(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        centre = 1.2 * normal(1, 1, 1, width)
        return {
            "q": centre + normal(rows, heads, queries, width),
            "k": centre + normal(rows, groups, positions.keys, width),
            "v": normal(rows, groups, positions.keys, values),
            **{name: torch.tensor(value, dtype=torch.float64) for name, value in scalars.items()},
        }

    generator = torch.Generator().manual_seed(seed)
    return Case(mechanism, tuple(tensors(generator) for _ in range(DRAWS)), {"positions": positions})
