"""Critical N of records with synthetic distances."""

from dataclasses import replace

import numpy as np
import pytest

from keysift.lens.diagnostics.critical_n import (
    OUTPUT,
    SUBSET,
    counts,
    critical,
    differs,
    largest_gap,
    longest_measured,
)
from keysift.records.lens import Head, ModelInfo, Record, Text


def record(distances: dict[int, float], reference: float = 10.0) -> Record:
    """A record of 40 heads with normally distributed distances (mean `distances[N]`) and references, in bucket 1."""
    draws = np.random.default_rng(0)
    heads = []
    for head in range(40):
        by_length: dict[str, tuple[float | None, ...]] = {}
        for n, mean in distances.items():
            by_length[f"distance_{n}"] = (None, mean + float(draws.normal()))
            by_length[f"{OUTPUT}_{n}"] = (None, reference + float(draws.normal()))
            by_length[f"{SUBSET}_{n}"] = (None, 0.0)
        heads.append(Head(layer=0, head=head, kinds=(), values={}, by_length=by_length))
    info = ModelInfo(
        name="m", kind="keysift", family="f", mechanisms=(), heads=(40,), context=None, parameters=1, vocabulary=1
    )
    return Record(model=info, texts=(Text(name="t", tokens=3, loss=1.0),), lengths=((1, 1), (2, 3)), heads=tuple(heads))


def test_critical_n_is_the_first_n_that_is_not_rejected() -> None:
    full = record({1: 2.0, 5: 6.0, 20: 10.0, 100: 10.0})
    assert counts(full) == [1, 5, 20, 100]
    assert critical(full, 1, OUTPUT) == 20
    assert critical(full, 1, SUBSET) is None, "the test rejects at every N"
    assert critical(full, 0, OUTPUT) is None, "nothing was measured"
    assert longest_measured(full) == 1
    cut_short = replace(full, lengths=((2, 3), (4, 7)), texts=(replace(full.texts[0], tokens=5),))
    assert longest_measured(cut_short) == 1, "the text fills no measured bucket, so the longest measured one is used"
    assert critical(replace(full, heads=full.heads[:1]), 1, OUTPUT) == 1, "the test cannot reject with one head"


def test_kolmogorov_smirnov_rejection_rate() -> None:
    assert largest_gap([1, 2, 3, 4], [3, 4, 5, 6]) == pytest.approx(0.5)
    assert largest_gap([1, 1, 2], [1, 1, 2]) == 0
    # For equal distributions the rejection rate is close to the level.
    draws = np.random.default_rng(1)
    rejected = [differs(*draws.normal(size=(2, 100)).tolist(), 0.05) for _ in range(400)]
    assert 0.01 < float(np.mean(rejected)) < 0.08
