"""The critical N, on records whose distances are written by hand."""

from dataclasses import replace

import numpy as np
import pytest

from keysift.lens.critical import OUTPUT, SUBSET, counts, critical, largest_gap, longest_measured, told_apart
from keysift.lens.record import About, Head, Record, Text


def record(distances: dict[int, float], reference: float = 10.0) -> Record:
    """Forty heads in one bucket, whose distances at N lie around one number and their references around another."""
    draws = np.random.default_rng(0)
    heads = []
    for head in range(40):
        by_length: dict[str, tuple[float | None, ...]] = {}
        for n, middle in distances.items():
            by_length[f"distance_{n}"] = (None, middle + float(draws.normal()))
            by_length[f"{OUTPUT}_{n}"] = (None, reference + float(draws.normal()))
            by_length[f"{SUBSET}_{n}"] = (None, 0.0)
        heads.append(Head(layer=0, head=head, kinds=(), values={}, by_length=by_length))
    about = About(
        name="m", kind="keysift", family="f", mechanisms=(), heads=(40,), context=None, parameters=1, vocabulary=1
    )
    return Record(
        model=about, texts=(Text(name="t", tokens=3, loss=1.0),), lengths=((1, 1), (2, 3)), heads=tuple(heads)
    )


def test_the_first_n_that_is_not_told_apart() -> None:
    found = record({1: 2.0, 5: 6.0, 20: 10.0, 100: 10.0})
    assert counts(found) == [1, 5, 20, 100]
    assert critical(found, 1, OUTPUT) == 20
    assert critical(found, 1, SUBSET) is None, "every N is told apart"
    assert critical(found, 0, OUTPUT) is None, "nothing was measured"
    assert longest_measured(found) == 1
    partly = replace(found, lengths=((2, 3), (4, 7)), texts=(replace(found.texts[0], tokens=5),))
    assert longest_measured(partly) == 1, "no bucket that the text fills was measured"
    assert critical(replace(found, heads=found.heads[:1]), 1, OUTPUT) == 1, "one head tells nothing apart"


def test_the_test_is_kolmogorovs_and_smirnovs() -> None:
    assert largest_gap([1, 2, 3, 4], [3, 4, 5, 6]) == pytest.approx(0.5)
    assert largest_gap([1, 1, 2], [1, 1, 2]) == 0
    # Of equal distributions it rejects about as often as its level says.
    draws = np.random.default_rng(1)
    rejected = [told_apart(*draws.normal(size=(2, 100)).tolist(), 0.05) for _ in range(400)]
    assert 0.01 < float(np.mean(rejected)) < 0.08
