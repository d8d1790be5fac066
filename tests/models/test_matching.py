"""The search for a model of equal size."""

from dataclasses import replace

import pytest

from keysift.models.architecture import Arch, MultiscreenArch, TransformerArch
from keysift.models.matching import match_width, parameters_of

SIZES = {"vocab_size": 61, "context": 32}


@pytest.mark.parametrize(
    ("arch", "step"),
    [
        (TransformerArch(depth=2, heads=4, width=64), 8),
        (TransformerArch(depth=2, heads=2, width=4, hidden_width=9), 4),
        (MultiscreenArch(depth=2, tiles=3, width=5, gate=False), 1),
    ],
)
@pytest.mark.parametrize("parameters", [1, 20_000, 314_159])
def test_no_other_width_is_nearer(arch: Arch, step: int, parameters: int) -> None:
    matched = match_width(arch, parameters, **SIZES)
    assert replace(matched, width=arch.width) == arch, "only the width changes"
    error = abs(parameters_of(matched, **SIZES) - parameters)
    for width in range(step, matched.width + 4 * step, step):
        assert abs(parameters_of(replace(arch, width=width), **SIZES) - parameters) >= error


def test_a_size_is_matched_by_itself() -> None:
    arch = TransformerArch(depth=3, heads=2, width=44)
    assert match_width(replace(arch, width=4), parameters_of(arch, **SIZES), **SIZES) == arch
