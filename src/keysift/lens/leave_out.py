"""Leave a key out: how far the other keys' weights move, and what becomes of the layer's output and of the loss.

A mechanism that judges each key alone moves nothing: its other weights are exactly as before. Softmax hands the mass of
the key that left to all others.

Letters: H heads, T queries, S keys.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from keysift.lens.reading import Block, Reading
from keysift.lens.rows import Numbers
from keysift.lens.subject import Subject, losses

Choose = Callable[[Block], Tensor]  # the key each row loses, H T


def brightest(block: Block) -> Tensor:
    """The key with the largest weight, the first key aside where the row sees another."""
    size = block.weights_HTS.abs().masked_fill(~block.seen_HTS, -1)
    size[..., 0] = torch.where(block.seen_HTS.sum(-1) > 1, -1.0, size[..., 0])
    return size.argmax(-1)


def first(block: Block) -> Tensor:
    return torch.zeros(block.weights_HTS.shape[:2], dtype=torch.int64)


def position(key: int) -> Choose:
    """The same key for every row."""
    return lambda block: torch.full(block.weights_HTS.shape[:2], key)


def without(block: Block, key_HT: Tensor, heads: Sequence[int] | None = None) -> Tensor:
    """The weights once each row has lost a key, for some heads or all; a row that saw no other keeps it."""
    lost = torch.zeros_like(block.seen_HTS).scatter_(-1, key_HT[..., None], True)
    lost &= (block.seen_HTS.sum(-1) > 1)[..., None]
    weights = block.reweigh(~lost)
    if heads is None:
        return weights
    kept = block.weights_HTS.clone()
    kept[list(heads)] = weights[list(heads)]
    return kept


def moved(block: Block) -> Numbers:
    """For the brightest key of each row: how much weight the others gained or lost, and how far the output moved."""
    key_HT = brightest(block)
    after = without(block, key_HT)
    stays = torch.ones_like(block.seen_HTS).scatter_(-1, key_HT[..., None], False)
    shift = (after - block.weights_HTS).masked_fill(~stays, 0).abs().sum(-1)
    others = block.weights_HTS.masked_fill(~stays, 0).abs().sum(-1)
    before_out, after_out = block.weights_HTS @ block.values_HSV, after @ block.values_HSV
    several = block.seen_HTS.sum(-1) > 1
    size = before_out.norm(dim=-1)
    return {
        "left_out_moved": torch.where(several, shift, math.nan),
        "left_out_gain": torch.where(several & (others > 0), shift / others, math.nan),
        "left_out_output": torch.where(several & (size > 0), (after_out - before_out).norm(dim=-1) / size, math.nan),
    }


def loss_without(
    subject: Subject,
    ids: Sequence[int],
    choose: Choose,
    *,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
) -> float:
    """The loss when every row loses a key: in every layer, in one, or for some heads of one."""

    def visit(reading: Reading) -> Tensor | None:
        if layer is not None and reading.layer != layer:
            return None
        return reading.output(lambda block: without(block, choose(block), heads))

    return losses(subject.run([ids], visit), [ids])[0]


def leave_out(subject: Subject, ids: Sequence[int]) -> dict[str, Any]:
    """What the loss becomes without the brightest key of each row, and without the first key: by layer and in all."""
    rows = [
        {
            "layer": layer,
            "brightest": loss_without(subject, ids, brightest, layer=layer),
            "first": loss_without(subject, ids, first, layer=layer),
        }
        for layer in range(len(subject.about.heads))
    ]
    whole = losses(subject.run([ids], lambda reading: None), [ids])[0]
    return {
        "tokens": len(ids),
        "loss": whole,
        "brightest": loss_without(subject, ids, brightest),
        "first": loss_without(subject, ids, first),
        "layers": rows,
    }
