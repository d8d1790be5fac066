"""Repeated tokens: read a random sequence twice and measure which heads find its first occurrence.

    start, a b c d ..., a b c d ...

Measured on the queries of the second copy: the share of the mass on the earlier copy of the query's own token
(duplicate-token heads) and on the token after it (induction heads). Random tokens have no other structure, so a head
can get a large share only by matching tokens. A model that has never seen its special tokens in a text may treat them
differently, so tokens are drawn from the texts and the unrelated text.
"""

import random

import torch
from torch import Tensor

from keysift.lens.layer_view import LayerView
from keysift.lens.model import LensModel, TextSet
from keysift.lens.unrelated_text import unrelated_tokens

LENGTH = 64  # tokens of a copy
SEQUENCES = 2
Scores = dict[int, Tensor]  # by layer, H


def repeated_tokens(texts: TextSet, seed: int = 0) -> dict[str, Scores]:
    """`duplicate_mass` and `induction_mass` of each head."""
    sequences = [_sequence(texts, seed + number) for number in range(SEQUENCES)]
    length = (len(sequences[0]) - 1) // 2
    sums: dict[str, Scores] = {"duplicate_mass": {}, "induction_mass": {}}

    def visit(view: LayerView) -> None:
        for block in view.blocks():
            rows = torch.nonzero(block.at_T > length).flatten()
            if not len(rows):
                continue
            magnitude = block.magnitude_HTS[:, rows].double()
            share = magnitude / magnitude.sum(-1, keepdim=True).clamp_min(torch.finfo(magnitude.dtype).tiny)
            earlier = block.at_T[rows] - length
            for name, key in (("duplicate_mass", earlier), ("induction_mass", earlier + 1)):
                total = share[:, torch.arange(len(rows)), key].sum(1)
                sums[name][block.layer] = sums[name].get(block.layer, 0) + total

    TextSet(texts.model, sequences, 1).visit_layers(visit)
    queries = length * SEQUENCES
    return {name: {layer: total / queries for layer, total in by_layer.items()} for name, by_layer in sums.items()}


def _sequence(texts: TextSet, seed: int) -> list[int]:
    """The start token of a text, then a random sequence of distinct tokens twice."""
    model: LensModel = texts.model
    known = sorted({*unrelated_tokens(model, 4 * LENGTH), *(token for ids in texts.texts for token in ids[1:])})
    context = model.info.context or 2 * LENGTH + 1
    length = max(1, min(LENGTH, len(known), (context - 1) // 2))
    drawn = random.Random(seed).sample(known, length)
    return [texts.texts[0][0], *drawn, *drawn]
