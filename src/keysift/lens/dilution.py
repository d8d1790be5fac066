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
from keysift.lens.subject import Subject

SPAN = 32


def amounts(span: int, context: int) -> list[int]:
    """0, then doubling from the length of the span up to what the context takes."""
    found, amount = [0], span
    while amount + span + 1 <= context:
        found.append(amount)
        amount *= 2
    return found


def dilution(subject: Subject, ids: Sequence[int], longest: int) -> dict[str, Any]:
    """`longest`: no more tokens at once than this (and the model's context)."""
    most = min(longest, subject.about.context or longest)
    span = min(SPAN, len(ids) - 1, max(2, most // 4))
    added = amounts(span, most)
    focus: list[dict[int, list[float]]] = []
    inverse: list[float] = []
    for amount in added:
        tokens = [ids[0], *filler(subject, amount), *ids[-span:]]
        begin = 1 + amount
        seen: dict[int, list[float]] = {}
        total: dict[int, torch.Tensor] = {}

        def visit(reading: Reading, begin: int = begin, total: dict[int, torch.Tensor] = total) -> None:
            for block in reading.blocks():
                rows = torch.nonzero(block.at_T > begin).flatten()
                if len(rows):
                    most_HT = block.weights_HTS[:, rows, begin:].abs().amax(-1)
                    total[block.layer] = total.get(block.layer, 0) + most_HT.double().sum(1)

        subject.run([tokens], visit)
        for layer, sums in total.items():
            seen[layer] = (sums / (span - 1)).tolist()
        focus.append(seen)
        inverse.append(float(np.mean([1 / (begin + row + 1) for row in range(1, span)])))
    rows = []
    for layer, heads in enumerate(subject.about.heads):
        for head in range(heads):
            curve = [found[layer][head] for found in focus]
            rows.append({"layer": layer, "head": head, "focus": curve, "exponent": _exponent(inverse, curve)})
    return {"span": span, "added": added, "heads": rows}


def _exponent(inverse: Sequence[float], focus: Sequence[float]) -> float | None:
    """b in focus ~ (mean of 1/n)^b, which is exactly 1 for a head that averages."""
    if len(focus) < 2 or min(focus) <= 0:
        return None
    slope = np.polyfit(np.log(inverse), np.log(focus), 1)[0]
    return float(slope) if math.isfinite(slope) else None
