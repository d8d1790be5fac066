"""Find the width at which a model has a given number of parameters, for comparisons at equal size."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from keysift.models.architecture import Arch, MultiscreenArch
from keysift.models.language_model import count_parameters
from keysift.models.registry import build_meta, configure

A = TypeVar("A", bound=Arch)


def parameters_of(arch: Arch, *, vocab_size: int, context: int) -> int:
    """Number of parameters of the model that `arch` describes. Allocates no memory."""
    return count_parameters(build_meta(configure(arch, vocab_size=vocab_size, context=context)))


def match_width(arch: A, parameters: int, *, vocab_size: int, context: int) -> A:
    """`arch` with the width that brings its parameter count nearest to `parameters`; every other field is kept."""
    # The heads divide the width of a Transformer, and RoPE rotates pairs of a head's channels.
    step = 1 if isinstance(arch, MultiscreenArch) else 2 * arch.heads

    def count(steps: int) -> int:
        return parameters_of(replace(arch, width=steps * step), vocab_size=vocab_size, context=context)

    return replace(arch, width=_nearest(count, parameters) * step)


def _nearest(count: Callable[[int], int], target: int) -> int:
    """The argument, at least 1, at which an increasing function comes nearest to `target`."""
    high = 1
    while count(high) < target:
        high *= 2
    low = 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if count(middle) < target else (low, middle)
    return min((n for n in (low - 1, low) if n), key=lambda n: abs(count(n) - target))
