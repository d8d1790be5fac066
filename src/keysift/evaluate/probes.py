"""Open inputs on which promises are tried: scores where some keys pass and some do not, scalars from all their range.

Scores stay within a few units, so that no exact zero is an underflow of exp.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.kernels.weigh import weigh
from keysift.mechanisms.spec import Mechanism

Numbers = dict[str, Tensor | float]


@dataclass
class Draw:
    """Rows of scores, one for each map, the keys' distances, and one number for each scalar."""

    mechanism: Mechanism
    maps: list[Tensor]
    distance: Tensor
    scalars: Numbers

    def weights(self, keys: Tensor | None = None, shift: tuple[int, float] | None = None) -> Tensor:
        """The weights of the chosen keys alone, with one map shifted if asked."""
        keys = torch.arange(len(self.distance)) if keys is None else keys
        maps = [as_scores(self.mechanism, x[..., keys]) for x in self.maps]
        if shift is not None:
            which, by = shift
            room = 0.5 if self.mechanism.cosine_scores else 1.0
            maps = [room * x for x in maps]
            maps[which] = maps[which] + room * by
        return weigh(
            self.mechanism,
            maps[0],
            second=maps[1] if len(maps) > 1 else None,
            distance=self.distance[keys],
            scalars=self.scalars,
        )

    def __str__(self) -> str:
        rows = ", second ".join(_row(as_scores(self.mechanism, x)) for x in self.maps)
        return f"scores {rows}{_away(self.distance)}{_given(self.scalars)}"


def as_scores(mechanism: Mechanism, numbers: Tensor) -> Tensor:
    """Any numbers as scores of this mechanism: themselves, or tanh(x / 2) where scores are cosines."""
    return torch.tanh(numbers / 2) if mechanism.cosine_scores else numbers


def _row(x: Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in x.tolist()) + "]"


def _away(distance: Tensor) -> str:
    return f" at distances {distance.tolist()}" if bool(distance.any()) else ""


def _given(scalars: Numbers) -> str:
    return "".join(f", {name} {float(value):g}" for name, value in scalars.items())


def draws(mechanism: Mechanism, dtype: torch.dtype, *, keys: int, count: int, spread: float = 1.6) -> Iterator[Draw]:
    generator = torch.Generator().manual_seed(7)
    grid = list(scalar_grid(mechanism))
    for i in range(count):
        maps = [spread * torch.randn(keys, dtype=dtype, generator=generator) for _ in range(mechanism.maps)]
        if i % 3 == 1:
            maps = [x - 2.5 for x in maps]  # rows where nearly everything is low
        if i % 3 == 2:
            maps[1:] = [maps[0] + 0.2 * y for y in maps[1:]]  # rows where both maps nearly agree
        maps = [x.clamp(-5, 5) for x in maps]
        distance = torch.randint(0, 4, (keys,), generator=generator)
        yield Draw(mechanism, maps, distance, grid[i % len(grid)])


def scalar_grid(mechanism: Mechanism) -> Iterator[Numbers]:
    """Every combination of the scalars' probe values."""
    own = [scalar for scalar in mechanism.scalars if scalar.follows is None]
    for values in itertools.product(*(scalar.probes for scalar in own)):
        yield {scalar.name: value for scalar, value in zip(own, values, strict=True)}


@dataclass
class Inputs:
    """q, k, v for `attend`, and scalars drawn element by element from their probes."""

    mechanism: Mechanism
    q: Tensor
    k: Tensor
    v: Tensor
    scalars: Numbers

    def attend(self) -> tuple[Tensor, Tensor]:
        return attend(self.mechanism, self.q, self.k, self.v, scalars=self.scalars, return_weights=True)


def inputs(
    mechanism: Mechanism, dtype: torch.dtype, *, count: int, queries: int = 8, keys: int = 8, width: int = 3
) -> Iterator[Inputs]:
    generator = torch.Generator().manual_seed(11)
    heads, groups = 2, 1
    sizes = {"B": 1, "H": heads, "G": groups, "T": queries, "S": keys, "V": width}
    for i in range(count):
        # In every other case a common direction, so that many cosines are high.
        near = (i % 2) * torch.randn(1, 1, 1, 4, dtype=dtype, generator=generator)
        q = near + torch.randn(1, heads * mechanism.maps, queries, 4, dtype=dtype, generator=generator)
        k = near + torch.randn(1, groups * mechanism.key_maps, keys, 4, dtype=dtype, generator=generator)
        v = 0.4 + torch.randn(1, groups, keys, width, dtype=dtype, generator=generator)
        scalars: Numbers = {}
        for scalar in mechanism.scalars:
            if scalar.follows is None:
                shape = [sizes[axis] for axis in scalar.per.value]
                pick = torch.randint(len(scalar.probes), shape, generator=generator)
                scalars[scalar.name] = torch.tensor(scalar.probes, dtype=dtype)[pick]
        yield Inputs(mechanism, q, k, v, scalars)


def families(keys: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Rows of scores a mechanism might refuse: all low, all equal, all on one key."""
    peak = torch.zeros(keys, dtype=dtype)
    peak[0] = 12.0
    return {
        "very low": torch.full((keys,), -12.0, dtype=dtype),
        "low": torch.full((keys,), -3.0, dtype=dtype),
        "equal": torch.zeros(keys, dtype=dtype),
        "peak": peak,
        "other peak": peak.flip(0),
    }


def output_of_scores(mechanism: Mechanism, maps: list[Tensor], v: Tensor, scalars: Numbers) -> Tensor:
    """Through the one door with chosen scores: keys are the unit vectors, so q's coordinates are the scores."""
    n = v.shape[0]
    q = torch.stack([x.expand(n) for x in maps]).view(1, mechanism.maps, 1, n)
    k = torch.eye(n, dtype=v.dtype).expand(1, mechanism.key_maps, n, n)
    scale = None if mechanism.cosine_scores else 1.0
    return attend(mechanism, q, k, v[None, None], scale=scale, scalars=scalars)[0, 0, 0]
