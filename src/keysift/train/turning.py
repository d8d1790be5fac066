"""How long the matrices of a model are and how far a step turns them.

A matrix whose output is normalised does nothing with its length, so what a step changes is its direction: the angle
between the matrix before and after, as one long vector. With the same step, a longer matrix turns less.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from keysift.train.distributed import whole


class Turning:
    """`before` a step, then `after` it. Layers are averaged: one number for each kind of matrix."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._matrices = {name: parameter for name, parameter in parameters.items() if parameter.ndim == 2}
        self._held: dict[str, Tensor] = {}

    @torch.no_grad()
    def before(self) -> None:
        self._held = {name: whole(matrix.detach()).clone() for name, matrix in self._matrices.items()}

    @torch.no_grad()
    def after(self) -> dict[str, dict[str, float]]:
        """Frobenius norms, and angles in radians."""
        norms: dict[str, list[float]] = {}
        angles: dict[str, list[float]] = {}
        for name, matrix in self._matrices.items():
            now, was = whole(matrix.detach()).double(), self._held[name].double()
            norms.setdefault(_kind(name), []).append(float(now.norm()))
            # Half the chord of two unit vectors: exact where an arc cosine would round a small angle to nothing.
            chord = float((now / now.norm() - was / was.norm()).norm())
            angles.setdefault(_kind(name), []).append(2 * math.asin(min(1.0, chord / 2)))
        return {"norms": _means(norms), "angles": _means(angles)}


def _kind(name: str) -> str:
    """The name without the number of its layer."""
    return ".".join(part for part in name.split(".") if not part.isdigit() and part != "layers")


def _means(found: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: sum(values) / len(values) for name, values in found.items()}
