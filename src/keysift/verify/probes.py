"""Inputs for checking promises: scores with accepted and refused keys, and scalars over their whole range.

Scores stay within a few units, so that an exact zero is never an underflow of exp.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.kernels.weigh import weigh
from keysift.mechanisms.spec import Mechanism

ScalarValues = dict[str, Tensor | float]


@dataclass
class Draw:
    """A row of scores for each map, the distances of the keys, and a value for each scalar."""

    mechanism: Mechanism
    maps: list[Tensor]
    distance: Tensor
    scalars: ScalarValues

    def weights(self, keys: Tensor | None = None, shift: tuple[int, float] | None = None) -> Tensor:
        """Weights when only `keys` are visible. `shift` = (map, amount) adds a constant to the scores of a map."""
        keys = torch.arange(len(self.distance)) if keys is None else keys
        maps = [as_scores(self.mechanism, x[..., keys]) for x in self.maps]
        if shift is not None:
            which, amount = shift
            factor = 0.5 if self.mechanism.cosine_scores else 1.0  # shifted cosines must stay within [-1, 1]
            maps = [factor * x for x in maps]
            maps[which] = maps[which] + factor * amount
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
    """Map any numbers to valid scores of the mechanism: tanh(x / 2) if its scores are cosines, otherwise x."""
    return torch.tanh(numbers / 2) if mechanism.cosine_scores else numbers


def _row(x: Tensor) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in x.tolist()) + "]"


def _away(distance: Tensor) -> str:
    return f" at distances {distance.tolist()}" if bool(distance.any()) else ""


def _given(scalars: ScalarValues) -> str:
    return "".join(f", {name} {float(value):g}" for name, value in scalars.items())


def draws(mechanism: Mechanism, dtype: torch.dtype, *, keys: int, count: int, spread: float = 1.6) -> Iterator[Draw]:
    """Random rows of scores: spread around zero, mostly low, or with two maps that nearly agree."""
    generator = torch.Generator().manual_seed(7)
    grid = list(scalar_grid(mechanism))
    for i in range(count):
        maps = [spread * torch.randn(keys, dtype=dtype, generator=generator) for _ in range(mechanism.maps)]
        if i % 3 == 1:
            maps = [x - 2.5 for x in maps]  # rows where nearly all scores are low
        if i % 3 == 2:
            maps[1:] = [maps[0] + 0.2 * y for y in maps[1:]]  # rows where both maps nearly agree
        maps = [x.clamp(-5, 5) for x in maps]
        if mechanism.rule.ordered or not mechanism.own_key:
            distance = torch.arange(keys, 0, -1) - int(mechanism.own_key)  # every key is visible, oldest first
        else:
            distance = torch.randint(0, 4, (keys,), generator=generator)
        yield Draw(mechanism, maps, distance, grid[i % len(grid)])


def scalar_grid(mechanism: Mechanism) -> Iterator[ScalarValues]:
    """Every combination of the scalars' probe values."""
    own = [scalar for scalar in mechanism.scalars if scalar.follows is None]
    for values in itertools.product(*(scalar.probes for scalar in own)):
        yield {scalar.name: value for scalar, value in zip(own, values, strict=True)}


@dataclass
class Inputs:
    """q, k, v for `attend`, and scalars with elements drawn from their probes."""

    mechanism: Mechanism
    q: Tensor
    k: Tensor
    v: Tensor
    scalars: ScalarValues

    def attend(self) -> tuple[Tensor, Tensor]:
        return attend(self.mechanism, self.q, self.k, self.v, scalars=self.scalars, return_weights=True)


def inputs(
    mechanism: Mechanism, dtype: torch.dtype, *, count: int, queries: int = 8, keys: int = 8, width: int = 3
) -> Iterator[Inputs]:
    """Random inputs of `attend`, with 2 heads that share a key head."""
    generator = torch.Generator().manual_seed(11)
    heads, groups = 2, 1
    sizes = {"B": 1, "H": heads, "G": groups, "T": queries, "S": keys, "V": width}
    for i in range(count):
        # Every second case has a common direction, so that many cosines are high.
        near = (i % 2) * torch.randn(1, 1, 1, 4, dtype=dtype, generator=generator)
        q = near + torch.randn(1, heads * mechanism.maps, queries, 4, dtype=dtype, generator=generator)
        k = near + torch.randn(1, groups * mechanism.key_maps, keys, 4, dtype=dtype, generator=generator)
        v = 0.4 + torch.randn(1, groups, keys, width, dtype=dtype, generator=generator)
        scalars: ScalarValues = {}
        for scalar in mechanism.scalars:
            if scalar.follows is None:
                shape = [sizes[axis] for axis in scalar.per.value]
                pick = torch.randint(len(scalar.probes), shape, generator=generator)
                scalars[scalar.name] = torch.tensor(scalar.probes, dtype=dtype)[pick]
        yield Inputs(mechanism, q, k, v, scalars)


def families(keys: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Rows of scores that a mechanism may refuse: all low, all equal, or one high score."""
    peak = torch.zeros(keys, dtype=dtype)
    peak[0] = 12.0
    return {
        "very low": torch.full((keys,), -12.0, dtype=dtype),
        "low": torch.full((keys,), -3.0, dtype=dtype),
        "equal": torch.zeros(keys, dtype=dtype),
        "peak": peak,
        "other peak": peak.flip(0),
    }


def output_of_scores(mechanism: Mechanism, maps: list[Tensor], v: Tensor, scalars: ScalarValues) -> Tensor:
    """Output of `attend` for given scores: the keys are unit vectors, so the coordinates of q are the scores."""
    n = v.shape[0]
    q = torch.stack([x.expand(n) for x in maps]).view(1, mechanism.maps, 1, n)
    k = torch.eye(n, dtype=v.dtype).expand(1, mechanism.key_maps, n, n)
    scale = None if mechanism.cosine_scores else 1.0
    return attend(mechanism, q, k, v[None, None], scale=scale, scalars=scalars)[0, 0, 0]
