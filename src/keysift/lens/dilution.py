"""Dilution: the end of a text after more and more unrelated tokens. How fast does each head's focus on it fade?

The same span is read after m unrelated tokens, for growing m. Focus is the largest weight a query of the span gives to
a key of the span. b is fitted in focus ~ n^-b, n the visible keys: 1 for a head that averages, 0 for one that does not
notice company.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from keysift.lens.filler import filler
from keysift.lens.reading import Reading
from keysift.lens.subject import Sample

SPAN = 32


def amounts(span: int, context: int) -> list[int]:
    """0, then doubling from the length of the span up to what the context takes."""
    found, amount = [0], span
    while amount + span + 1 <= context:
        found.append(amount)
        amount *= 2
    return found


def dilution(sample: Sample, longest: int) -> dict[str, Any]:
    """`longest`: no more tokens at once than this (and the model's context)."""
    subject = sample.subject
    most = min(longest, subject.about.context or longest)
    span = max(2, min(SPAN, min(map(len, sample.texts)) - 1, most // 4))
    added = amounts(span, most)
    focus = [_focus(sample, amount, span) for amount in added]
    # Mean of 1/n over the queries that are looked at: the span's, but for its first.
    inverse = [float(np.mean([1 / (amount + row + 2) for row in range(1, span)])) for amount in added]
    rows = []
    for layer, heads in enumerate(subject.about.heads):
        for head in range(heads):
            curve = [found[layer][head] for found in focus]
            rows.append({"layer": layer, "head": head, "focus": curve, "exponent": _exponent(inverse, curve)})
    return {"span": span, "added": added, "heads": rows}


def _focus(sample: Sample, amount: int, span: int) -> dict[int, list[float]]:
    """The mean largest weight on a key of the span, for each layer and head."""
    between = filler(sample.subject, amount)
    begin = 1 + amount
    total: dict[int, torch.Tensor] = {}

    def visit(reading: Reading) -> None:
        for block in reading.blocks():
            rows = torch.nonzero(block.at_T > begin).flatten()
            if len(rows):
                most_HT = block.weights_HTS[:, rows, begin:].abs().amax(-1)
                total[block.layer] = total.get(block.layer, 0) + most_HT.double().sum(1)

    Sample(sample.subject, [[ids[0], *between, *ids[-span:]] for ids in sample.texts], sample.batch).show(visit)
    queries = len(sample.texts) * (span - 1)
    return {layer: (sums / queries).tolist() for layer, sums in total.items()}


def _exponent(inverse: Sequence[float], focus: Sequence[float]) -> float | None:
    """b in focus ~ (mean of 1/n)^b, which is exactly 1 for a head that averages."""
    if len(focus) < 2 or min(focus) <= 0:
        return None
    slope = np.polyfit(np.log(inverse), np.log(focus), 1)[0]
    return float(slope) if math.isfinite(slope) else None
