"""Small readings with random numbers: a batch of texts of different lengths, padded on the left."""

from collections.abc import Iterator

import torch

from keysift.kernels.call import check
from keysift.lens.reading import Block, Reading
from keysift.mechanisms import find


def reading(mechanism: str = "softmax", lengths: tuple[int, ...] = (13, 40), heads: int = 3, width: int = 5) -> Reading:
    longest = max(lengths)
    found = find(mechanism)
    q = 2 * torch.randn(len(lengths), heads * found.rule.maps, longest, width)
    k, v = (
        torch.randn(len(lengths), heads * found.key_maps, longest, width),
        torch.randn(len(lengths), heads, longest, 4),
    )
    padding = tuple(longest - length for length in lengths)
    real = torch.arange(longest)[None] >= torch.tensor(padding)[:, None]
    keep = real[:, None, :, None] & real[:, None, None, :]
    return Reading(0, check(found, q, k, v, keep=keep), padding)


def every_row(found: Reading) -> Iterator[tuple[Block, int, int]]:
    """Block, head and place of each query, one at a time."""
    for block in found.blocks():
        for head in range(found.heads):
            for row in range(block.scores_HTS.shape[1]):
                yield block, head, row
