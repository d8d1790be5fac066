"""Shape checks with errors that name the argument. They accept any object with a `.shape` and do not import torch."""

from collections.abc import Sequence
from typing import Protocol

from keysift.core.errors import ShapeError


class Shaped(Protocol):
    @property
    def shape(self) -> Sequence[int]: ...


def show(tensor: Shaped) -> str:
    return "x".join(map(str, tensor.shape)) or "()"


def rank(name: str, tensor: Shaped, letters: str) -> None:
    """Check the number of axes; `letters` names them: rank("q", q, "BHTK")."""
    if len(tensor.shape) != len(letters):
        raise ShapeError(
            f"{name} must have {len(letters)} axes ({' '.join(letters)}), got {len(tensor.shape)} ({show(tensor)}); "
            f"add or remove axes with unsqueeze or reshape"
        )


def same(axis: str, left: str, left_size: int, right: str, right_size: int) -> None:
    if left_size != right_size:
        raise ShapeError(f"{left} and {right} must agree in {axis}, got {left_size} and {right_size}")


def not_empty(name: str, axis: str, size: int) -> None:
    if size == 0:
        raise ShapeError(f"{name} must have at least one {axis}, got 0; skip the call for an empty sequence")


def broadcastable(name: str, tensor: Shaped, letters: str, to: Sequence[int]) -> None:
    shape = tuple(tensor.shape)
    # Two comparisons instead of `in`, which torch.compile does not trace for dynamic sizes.
    pairs = zip(reversed(shape), reversed(to), strict=False)
    fits = len(shape) <= len(to) and all(a == 1 or a == b for a, b in pairs)
    if not fits:
        wanted = "x".join(map(str, to))
        raise ShapeError(
            f"{name} must broadcast to {' '.join(letters)} = {wanted}, got {show(tensor)}; give each axis its size or 1"
        )
