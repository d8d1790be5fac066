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
from keysift.lens.subject import Progress, Sample, silent

Choose = Callable[[Block], Tensor]  # the key each row loses, H T


def brightest(block: Block) -> Tensor:
    """The key with the largest weight, the first key aside where the row sees another."""
    return torch.where(block.n_HT > 1, block.brightest_HT[1], 0)


def first(block: Block) -> Tensor:
    return torch.zeros(block.weights_HTS.shape[:2], dtype=torch.int64)


def position(key: int) -> Choose:
    """The same key for every row."""
    return lambda block: torch.full(block.weights_HTS.shape[:2], key)


def without(block: Block, key_HT: Tensor, heads: Sequence[int] | None = None) -> Tensor:
    """The weights once each row has lost a key, for some heads or all; a row that saw no other keeps it."""
    lost = torch.zeros_like(block.seen_HTS).scatter_(-1, key_HT[..., None], True)
    lost &= (block.n_HT > 1)[..., None]
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
    several = block.n_HT > 1
    size = before_out.norm(dim=-1)
    return {
        "left_out_moved": torch.where(several, shift, math.nan),
        "left_out_gain": torch.where(several & (others > 0), shift / others, math.nan),
        "left_out_output": torch.where(several & (size > 0), (after_out - before_out).norm(dim=-1) / size, math.nan),
    }


def loss_without(
    sample: Sample, choose: Choose, *, layer: int | None = None, heads: Sequence[int] | None = None
) -> float:
    """The loss when every row loses a key: in every layer, in one, or for some heads of one."""

    def visit(reading: Reading) -> Tensor | None:
        if layer is not None and reading.layer != layer:
            return None
        return reading.output(lambda block: without(block, choose(block), heads))

    return sample.loss(visit)


def outputs_moved(sample: Sample, choose: Choose) -> list[float]:
    """For each layer: how far its output moves when every row loses a key, relative to the output's size."""
    layers = len(sample.subject.about.heads)
    shift, size = torch.zeros(layers, dtype=torch.float64), torch.zeros(layers, dtype=torch.float64)

    def visit(reading: Reading) -> None:
        before = reading.output(lambda block: block.weights_HTS)
        after = reading.output(lambda block: without(block, choose(block)))
        shift[reading.layer] += (after - before).double().square().sum()
        size[reading.layer] += before.double().square().sum()

    sample.show(visit)
    return (shift / size).sqrt().tolist()


def leave_out(sample: Sample, progress: Progress = silent) -> dict[str, Any]:
    """Without the brightest key of each row, and without the first key: the loss by layer and in all, and how far the
    output of each layer moves."""
    ways = {"brightest": brightest, "first": first}
    moved = {f"{name}_output": outputs_moved(sample, choose) for name, choose in ways.items()}
    layers = len(sample.subject.about.heads)
    rows = []
    for layer in range(layers):
        row: dict[str, Any] = {"layer": layer}
        row |= {name: loss_without(sample, choose, layer=layer) for name, choose in ways.items()}
        rows.append(row | {name: values[layer] for name, values in moved.items()})
        progress("leave a key out", layer + 1, layers)
    return {
        "tokens": sum(map(len, sample.texts)),
        "loss": sample.loss(),
        **{name: loss_without(sample, choose) for name, choose in ways.items()},
        "layers": rows,
    }
