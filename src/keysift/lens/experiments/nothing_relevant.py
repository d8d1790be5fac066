"""Nothing relevant: replace the earlier copy of a span by unrelated text and measure where the attention goes.

    with      start, unrelated, SPAN, unrelated, SPAN
    without   start, unrelated, unrelated of the same length, unrelated, SPAN

Both have the same length, so every query keeps its position. Measured on the queries of the last span.
"""

from typing import Any

import torch
from torch import Tensor

from keysift.lens.layer_view import Block, LayerView
from keysift.lens.model import TextSet
from keysift.lens.unrelated_text import unrelated_tokens

SPAN = 32
NEAR = 8  # keys before the query that count as near
PLACES = ("first", "own", "near", "span", "elsewhere")


def nothing_relevant(texts: TextSet, longest: int) -> dict[str, Any]:
    """Mass by place for every head, with and without the copy, on at most `longest` tokens at once."""
    info = texts.model.info
    most = min(longest, info.context or longest)
    span = max(2, min(SPAN, min(map(len, texts.texts)) - 1, (most - 1) // 4))
    lead, between, instead = (unrelated_tokens(texts.model, span, skip=span * part) for part in range(3))
    means = {}
    for name in ("with", "without"):
        spliced = []
        for ids in texts.texts:
            own = list(ids[-span:])
            spliced.append([ids[0], *lead, *(own if name == "with" else instead), *between, *own])
        means[name] = _means(TextSet(texts.model, spliced, texts.batch), slice(1 + span, 1 + 2 * span), 1 + 3 * span)
    rows = []
    for layer, heads in enumerate(info.heads):
        for head in range(heads):
            both = {
                name: {place: float(by_layer[layer][head]) for place, by_layer in places.items()}
                for name, places in means.items()
            }
            rows.append({"layer": layer, "head": head, **both})
    return {"span": span, "tokens": 4 * span + 1, "heads": rows}


def _means(texts: TextSet, copy: slice, begin: int) -> dict[str, dict[int, Tensor]]:
    """Mean mass by place, largest weight and row mass of the queries from `begin` on, by layer."""
    sums: dict[str, dict[int, Tensor]] = {name: {} for name in (*PLACES, "largest", "mass")}

    def visit(view: LayerView) -> None:
        for block in view.blocks():
            for name, value in mass_by_place(block, copy, begin).items():
                sums[name][block.layer] = sums[name].get(block.layer, 0) + value

    texts.visit_layers(visit)
    queries = sum(len(ids) - begin for ids in texts.texts)
    return {name: {layer: total / queries for layer, total in by_layer.items()} for name, by_layer in sums.items()}


def mass_by_place(block: Block, copy: slice, begin: int) -> dict[str, Tensor]:
    """Sums over the block's queries from `begin` on, H each: share of the mass by place, largest share, row mass.

    A key counts for the first place in PLACES that it matches.
    """
    rows = torch.nonzero(block.at_T >= begin).flatten()
    weights = block.weights_HTS[:, rows].double()
    at, key = block.at_T[rows][:, None], torch.arange(weights.shape[-1])[None]
    matches = {
        "first": (key == 0).expand(len(rows), -1),
        "own": key == at,
        "near": (key < at) & (key >= at - NEAR),
        "span": ((key >= copy.start) & (key < copy.stop)).expand(len(rows), -1),
        "elsewhere": torch.ones(len(rows), weights.shape[-1], dtype=torch.bool),
    }
    magnitude = weights.abs()
    # A row that accepts no key has no mass; it counts as 0 in every place.
    share = magnitude / magnitude.sum(-1, keepdim=True).clamp_min(torch.finfo(magnitude.dtype).tiny)
    sums: dict[str, Tensor] = {}
    counted = torch.zeros_like(matches["elsewhere"])
    for name in PLACES:
        sums[name] = share.masked_fill(~(matches[name] & ~counted), 0).sum((1, 2))
        counted = counted | matches[name]
    return sums | {"largest": share.amax(-1).sum(1), "mass": weights.sum((1, 2))}
