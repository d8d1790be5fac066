"""Dilution: put more and more unrelated tokens before a span and measure how each head's focus on the span falls.

Focus is the largest weight that a query of the span gives to a key of the span. The exponent b is fitted in
focus ~ n^-b for n visible keys: 1 for a head that averages, 0 for a head that unrelated tokens do not affect.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from keysift.core.statistics import power_law_exponent
from keysift.lens.layer_view import LayerView
from keysift.lens.model import TextSet
from keysift.lens.unrelated_text import unrelated_tokens

SPAN = 32


def filler_lengths(span: int, context: int) -> list[int]:
    """0, then doubling from the length of the span up to the context."""
    lengths, length = [0], span
    while length + span + 1 <= context:
        lengths.append(length)
        length *= 2
    return lengths


def dilution(texts: TextSet, longest: int) -> dict[str, Any]:
    """Focus of every head after each amount of filler, on at most `longest` tokens at once."""
    info = texts.model.info
    most = min(longest, info.context or longest)
    span = max(2, min(SPAN, min(map(len, texts.texts)) - 1, most // 4))
    added = filler_lengths(span, most)
    focus = [_focus(texts, length, span) for length in added]
    # Mean of 1/n over the queries of the span except its first.
    inverse = [float(np.mean([1 / (length + row + 2) for row in range(1, span)])) for length in added]
    rows = []
    for layer, heads in enumerate(info.heads):
        for head in range(heads):
            curve = [by_layer[layer][head] for by_layer in focus]
            rows.append({"layer": layer, "head": head, "focus": curve, "exponent": _exponent(inverse, curve)})
    return {"span": span, "added": added, "heads": rows}


def _focus(texts: TextSet, length: int, span: int) -> dict[int, list[float]]:
    """Mean largest weight on a key of the span, for each layer and head."""
    filler = unrelated_tokens(texts.model, length)
    begin = 1 + length
    total: dict[int, torch.Tensor] = {}

    def visit(view: LayerView) -> None:
        for block in view.blocks():
            rows = torch.nonzero(block.at_T > begin).flatten()
            if len(rows):
                largest_HT = block.weights_HTS[:, rows, begin:].abs().amax(-1)
                total[block.layer] = total.get(block.layer, 0) + largest_HT.double().sum(1)

    TextSet(texts.model, [[ids[0], *filler, *ids[-span:]] for ids in texts.texts], texts.batch).visit_layers(visit)
    queries = len(texts.texts) * (span - 1)
    return {layer: (sums / queries).tolist() for layer, sums in total.items()}


def _exponent(inverse: Sequence[float], focus: Sequence[float]) -> float | None:
    """b in focus ~ (mean of 1/n)^b, which is exactly 1 for a head that averages."""
    if min(focus) <= 0:
        return None
    exponent = power_law_exponent(zip(inverse, focus, strict=True))
    return exponent if math.isfinite(exponent) else None
