"""Layer views with random queries, keys and values: a left-padded batch of texts of different lengths."""

from collections.abc import Iterator

import torch

from keysift.kernels.call import make_call
from keysift.lens.layer_view import Block, LayerView
from keysift.mechanisms import find


def layer_view(
    mechanism: str = "softmax", lengths: tuple[int, ...] = (13, 40), heads: int = 3, width: int = 5
) -> LayerView:
    longest = max(lengths)
    spec = find(mechanism)
    q = 2 * torch.randn(len(lengths), heads * spec.rule.maps, longest, width)
    k, v = (
        torch.randn(len(lengths), heads * spec.key_maps, longest, width),
        torch.randn(len(lengths), heads, longest, 4),
    )
    padding = tuple(longest - length for length in lengths)
    real = torch.arange(longest)[None] >= torch.tensor(padding)[:, None]
    keep = real[:, None, :, None] & real[:, None, None, :]
    return LayerView(0, make_call(spec, q, k, v, keep=keep), padding)


def every_row(view: LayerView) -> Iterator[tuple[Block, int, int]]:
    """Block, head and row index of each query."""
    for block in view.blocks():
        for head in range(view.heads):
            for row in range(block.scores_HTS.shape[1]):
                yield block, head, row
