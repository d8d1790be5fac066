"""Nothing relevant: a span that stood earlier in the context is taken away. Where does the mass go?

    with      start, unrelated, SPAN, unrelated, SPAN
    without   start, unrelated, unrelated of the same length, unrelated, SPAN

Both have the same length, so every query keeps its position. Measured on the queries of the last span.
"""

from typing import Any

import torch
from torch import Tensor

from keysift.lens.filler import filler
from keysift.lens.reading import Block, Reading
from keysift.lens.subject import Sample

SPAN = 32
NEAR = 8  # neighbours: this many keys before the query
PLACES = ("first", "own", "near", "span", "elsewhere")


def nothing_relevant(sample: Sample, longest: int) -> dict[str, Any]:
    """`longest`: no more tokens at once than this (and the model's context)."""
    subject = sample.subject
    most = min(longest, subject.about.context or longest)
    span = max(2, min(SPAN, min(map(len, sample.texts)) - 1, (most - 1) // 4))
    lead, between, instead = (filler(subject, span, skip=span * part) for part in range(3))
    found = {}
    for name in ("with", "without"):
        texts = []
        for ids in sample.texts:
            own = list(ids[-span:])
            texts.append([ids[0], *lead, *(own if name == "with" else instead), *between, *own])
        found[name] = _where(Sample(subject, texts, sample.batch), slice(1 + span, 1 + 2 * span), 1 + 3 * span)
    rows = []
    for layer, heads in enumerate(subject.about.heads):
        for head in range(heads):
            both = {name: {what: float(x[layer][head]) for what, x in places.items()} for name, places in found.items()}
            rows.append({"layer": layer, "head": head, **both})
    return {"span": span, "tokens": 4 * span + 1, "heads": rows}


def _where(sample: Sample, there: slice, begin: int) -> dict[str, dict[int, Tensor]]:
    """Mean mass by place, largest weight and row mass of the queries from `begin` on, by layer."""
    sums: dict[str, dict[int, Tensor]] = {name: {} for name in (*PLACES, "largest", "mass")}

    def visit(reading: Reading) -> None:
        for block in reading.blocks():
            for name, value in places(block, there, begin).items():
                sums[name][block.layer] = sums[name].get(block.layer, 0) + value

    sample.show(visit)
    queries = sum(len(ids) - begin for ids in sample.texts)
    return {name: {layer: total / queries for layer, total in found.items()} for name, found in sums.items()}


def places(block: Block, there: slice, begin: int) -> dict[str, Tensor]:
    """Sums over the block's queries from `begin` on, H each: shares of a row's mass by place, and the mass itself.

    A key counts for the first place that fits it.
    """
    rows = torch.nonzero(block.at_T >= begin).flatten()
    weights = block.weights_HTS[:, rows].double()
    at, key = block.at_T[rows][:, None], torch.arange(weights.shape[-1])[None]
    kinds = {
        "first": (key == 0).expand(len(rows), -1),
        "own": key == at,
        "near": (key < at) & (key >= at - NEAR),
        "span": ((key >= there.start) & (key < there.stop)).expand(len(rows), -1),
        "elsewhere": torch.ones(len(rows), weights.shape[-1], dtype=torch.bool),
    }
    size = weights.abs()
    # A row that accepts nothing has no mass to put anywhere; it counts as 0 everywhere.
    share = size / size.sum(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
    found: dict[str, Tensor] = {}
    taken = torch.zeros_like(kinds["elsewhere"])
    for name, kind in kinds.items():
        found[name] = share.masked_fill(~(kind & ~taken), 0).sum((1, 2))
        taken = taken | kind
    return found | {"largest": share.amax(-1).sum(1), "mass": weights.sum((1, 2))}
