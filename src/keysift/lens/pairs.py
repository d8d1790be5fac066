"""Scores and weights of single queries, for a page where a reader points at one: the heaviest keys of each query.

A record of 270 heads over 2,048 tokens has a thousand million pairs. Kept are at most KEYS keys a query (always the
first key and the query's own) and so many queries, evenly spaced, that all heads together stay below PAIRS.

Letters: H heads, T queries, S keys, K kept keys.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keysift.lens.reading import Block, Reading
from keysift.lens.subject import Subject
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Promise

PAIRS, KEYS = 700_000, 64


class Pairs:
    """Visits the readings of one text and keeps what a page will show."""

    def __init__(self, pieces: list[str], heads: int, text: int = 0) -> None:
        self.pieces, self.text = pieces, text
        self.keys = min(KEYS, len(pieces))
        room = max(1, PAIRS // (heads * self.keys))
        step = max(1, -(-len(pieces) // room))
        # Counted from the end: the last query sees the most.
        self.queries = list(range((len(pieces) - 1) % step, len(pieces), step))
        self._parts: dict[int, list[tuple[Tensor, Tensor, Tensor, Tensor]]] = {}
        self._mechanisms: dict[int, str] = {}

    def visit(self, reading: Reading) -> None:
        self._mechanisms[reading.layer] = _removal(reading)
        wanted = torch.tensor(self.queries)
        for block in reading.blocks_of(self.text):
            mine = wanted[(wanted >= block.first) & (wanted < block.first + block.scores_HTS.shape[1])]
            if len(mine):
                self._parts.setdefault(reading.layer, []).append(self._kept(block, mine - block.first))

    def _kept(self, block: Block, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        some = block.pick(rows)
        order = some.size_HTS.masked_fill(~some.seen_HTS, -1)
        order[..., 0] = torch.where(some.seen_HTS[..., 0], torch.inf, -1.0)
        order[:, torch.arange(len(rows)), some.at_T] = torch.inf
        keys = order.topk(min(self.keys, order.shape[-1]), dim=-1).indices.sort(-1).values
        there = some.seen_HTS.gather(-1, keys)
        kept = (torch.where(there, keys, -1), some.scores_HTS.gather(-1, keys), some.weights_HTS.gather(-1, keys))
        lacking = (0, self.keys - keys.shape[-1])  # the first rows see fewer keys than are kept
        at, scores, weights = (torch.nn.functional.pad(x, lacking, value=-1) for x in kept)
        return at, scores, weights, some.n_HT

    def to_plain(self) -> dict[str, Any]:
        heads = []
        for layer, parts in sorted(self._parts.items()):
            keys, scores, weights, seen = (torch.cat(found, dim=1) for found in zip(*parts, strict=True))
            for head in range(keys.shape[0]):
                heads.append(
                    {
                        "layer": layer,
                        "head": head,
                        "removal": self._mechanisms[layer],
                        "keys": _packed(keys[head], np.int32),
                        "scores": _packed(scores[head], np.float32),
                        "weights": _packed(weights[head], np.float32),
                        "seen": seen[head].tolist(),
                    }
                )
        return {"tokens": self.pieces, "queries": self.queries, "keys": self.keys, "heads": heads}


def _removal(reading: Reading) -> str:
    """What a page must do with the other weights when a key leaves; "unknown" where only the mechanism can tell."""
    if reading.mechanism.name == SOFTMAX.name:
        return "share"
    return "nothing" if Promise.ABSOLUTE in reading.mechanism.holds else "unknown"


def _packed(values: Tensor, kind: Any) -> str:
    """Little-endian bytes as text."""
    return base64.b64encode(values.contiguous().numpy().astype(np.dtype(kind).newbyteorder("<")).tobytes()).decode()


def pairs(subject: Subject, ids: Sequence[int]) -> dict[str, Any]:
    """What a page needs to show single queries of a text."""
    kept = Pairs(subject.pieces(ids), sum(subject.about.heads))
    subject.run([ids], kept.visit)
    return kept.to_plain()
