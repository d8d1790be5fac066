"""Remove one key from every row: the weights that the mechanism then gives to the other keys.

With a pointwise mechanism the other weights stay exactly the same. Softmax distributes the removed mass over them.

Letters: H heads, T queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.lens.diagnostics.rows import Numbers
from keysift.lens.layer_view import Block


def brightest_key(block: Block) -> Tensor:
    """The key with the largest weight, the first key excluded unless it is the only visible key; H T."""
    return torch.where(block.n_HT > 1, block.brightest_HT[1], 0)


def first_key(block: Block) -> Tensor:
    return torch.zeros(block.weights_HTS.shape[:2], dtype=torch.int64)


def weights_without(block: Block, key_HT: Tensor) -> Tensor:
    """The weights after one key of each row is removed; a row with a single visible key keeps it."""
    removed = torch.zeros_like(block.visible_HTS).scatter_(-1, key_HT[..., None], True)
    removed &= (block.n_HT > 1)[..., None]
    return block.reweigh(~removed)


def removal_effect(block: Block) -> Numbers:
    """Change of the other weights and of the head's output when the brightest key of each row is removed."""
    key_HT = brightest_key(block)
    after = weights_without(block, key_HT)
    other_HTS = torch.ones_like(block.visible_HTS).scatter_(-1, key_HT[..., None], False)
    change = (after - block.weights_HTS).masked_fill(~other_HTS, 0).abs().sum(-1)
    others = block.weights_HTS.masked_fill(~other_HTS, 0).abs().sum(-1)
    output, output_after = block.weights_HTS @ block.values_HSV, after @ block.values_HSV
    several = block.n_HT > 1
    norm = output.norm(dim=-1)
    return {
        "left_out_moved": torch.where(several, change, math.nan),
        "left_out_gain": torch.where(several & (others > 0), change / others, math.nan),
        "left_out_output": torch.where(several & (norm > 0), (output_after - output).norm(dim=-1) / norm, math.nan),
    }
