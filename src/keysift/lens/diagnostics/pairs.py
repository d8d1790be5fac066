"""Scores and weights of query-key pairs, for a page on which a reader selects a query.

270 heads over 2,048 tokens have a billion pairs. Stored are at most KEYS keys per query, those with the largest weights
(always including the first key and the query's own), and as many evenly spaced queries as keep all heads below PAIRS.

Letters: H heads, T queries, S keys, K kept keys.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keysift.lens.layer_view import Block, LayerView
from keysift.lens.model import LensModel
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Promise

PAIRS, KEYS = 700_000, 64


class Pairs:
    """Visits the layers of one text and stores the pairs that a page shows."""

    def __init__(self, pieces: list[str], heads: int, text: int = 0) -> None:
        self.pieces, self.text = pieces, text
        self.keys = min(KEYS, len(pieces))
        most_queries = max(1, PAIRS // (heads * self.keys))
        step = max(1, -(-len(pieces) // most_queries))
        # Counted from the end, because the last query has the most visible keys.
        self.queries = list(range((len(pieces) - 1) % step, len(pieces), step))
        self._parts: dict[int, list[tuple[Tensor, Tensor, Tensor, Tensor]]] = {}
        self._removal: dict[int, str] = {}

    def visit(self, view: LayerView) -> None:
        self._removal[view.layer] = _removal(view)
        queries = torch.tensor(self.queries)
        for block in view.text_blocks(self.text):
            in_block = queries[(queries >= block.first) & (queries < block.first + block.scores_HTS.shape[1])]
            if len(in_block):
                self._parts.setdefault(view.layer, []).append(self._largest(block, in_block - block.first))

    def _largest(self, block: Block, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys, scores and weights of the stored pairs of some queries, H Q K, and the numbers of visible keys."""
        block = block.select(rows)
        order = block.magnitude_HTS.masked_fill(~block.visible_HTS, -1)
        order[..., 0] = torch.where(block.visible_HTS[..., 0], torch.inf, -1.0)
        order[:, torch.arange(len(rows)), block.at_T] = torch.inf
        keys = order.topk(min(self.keys, order.shape[-1]), dim=-1).indices.sort(-1).values
        visible = block.visible_HTS.gather(-1, keys)
        stored = (torch.where(visible, keys, -1), block.scores_HTS.gather(-1, keys), block.weights_HTS.gather(-1, keys))
        missing = (0, self.keys - keys.shape[-1])  # early queries have fewer visible keys
        at, scores, weights = (torch.nn.functional.pad(x, missing, value=-1) for x in stored)
        return at, scores, weights, block.n_HT

    def to_plain(self) -> dict[str, Any]:
        """JSON types, arrays packed as base64."""
        heads = []
        for layer, parts in sorted(self._parts.items()):
            keys, scores, weights, seen = (torch.cat(blocks, dim=1) for blocks in zip(*parts, strict=True))
            for head in range(keys.shape[0]):
                heads.append(
                    {
                        "layer": layer,
                        "head": head,
                        "removal": self._removal[layer],
                        "keys": _packed(keys[head], np.int32),
                        "scores": _packed(scores[head], np.float32),
                        "weights": _packed(weights[head], np.float32),
                        "seen": seen[head].tolist(),
                    }
                )
        return {"tokens": self.pieces, "queries": self.queries, "keys": self.keys, "heads": heads}


def _removal(view: LayerView) -> str:
    """How a page updates the other weights when a key is removed; "unknown" if it cannot compute them."""
    if view.mechanism.name == SOFTMAX.name:
        return "share"
    return "nothing" if Promise.ABSOLUTE in view.mechanism.holds else "unknown"


def _packed(values: Tensor, kind: Any) -> str:
    """Little-endian bytes as base64."""
    return base64.b64encode(values.contiguous().numpy().astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def pairs(model: LensModel, ids: Sequence[int]) -> dict[str, Any]:
    """The stored pairs of one text."""
    stored = Pairs(model.pieces(ids), sum(model.info.heads))
    model.run([ids], stored.visit)
    return stored.to_plain()
