"""Attention maps of one text for a page and a record: codes for all pairs, exact scores for the largest weights.

The format is in keysift.records.lens_maps. Its size is bounded: at most CODES codes and about EXACT exact keys.

Letters: H heads, T queries of a block, S keys, G cells per side of a map, Q stored queries, K kept keys.
"""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from keysift.lens.diagnostics.acceptance import per_head_scalar
from keysift.lens.diagnostics.key_groups import key_groups
from keysift.lens.diagnostics.threshold import threshold
from keysift.lens.layer_view import Block, LayerView
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Promise
from keysift.records import lens_maps
from keysift.records.lens_maps import LEVELS, NO_KEY, KeyGroup, MapHead, TextMaps, pack

CODES = 1_300_000
EXACT, MOST_EXACT = 80_000, 450_000  # exact keys of all heads: at least, and at most if a text has many queries
LEAST_KEYS, MOST_KEYS = 4, 256
Arrays = dict[str, npt.NDArray[np.generic]]
_TYPES = {np.dtype(np.uint8): "uint8", np.dtype(np.uint32): "uint32", np.dtype(np.float32): "float32"}


class MapCollector:
    """Visits the layers of a batch and stores the map of one of its texts.

    softmax  whether every layer uses softmax, so that weights follow from scores
    share    part of the size limits that this map may use
    """

    def __init__(self, pieces: list[str], heads: int, *, softmax: bool, share: float = 1.0) -> None:
        self.pieces, self.softmax = pieces, softmax
        tokens = len(pieces)
        self.pool = 1
        while self._codes(tokens, heads) > max(CODES * share, 6 * heads):
            self.pool += 1
        rows = tokens * heads
        exact = share * min(MOST_EXACT, max(EXACT, 8 * rows))
        self.keys = min(tokens, max(LEAST_KEYS, min(MOST_KEYS, int(exact / rows))))
        step = 1 if rows * self.keys <= exact else math.ceil(rows * self.keys / exact)
        # Counted from the end, because the last query has the most visible keys.
        self.queries = list(range((tokens - 1) % step, tokens, step))
        self._layers: dict[int, tuple[list[MapHead], Arrays]] = {}

    def _codes(self, tokens: int, heads: int) -> int:
        side = -(-tokens // self.pool)
        return heads * side * (side + 1) // 2 * (1 if self.softmax and self.pool == 1 else 2)

    def visit(self, view: LayerView, text: int) -> None:
        """Store a layer; `text` is the number of the text in the batch."""
        side = -(-len(self.pieces) // self.pool)
        scores, weights = (torch.full((view.heads, side, side), -math.inf) for _ in range(2))
        negative = torch.zeros(view.heads, side, side)
        exact = []
        queries = torch.tensor(self.queries)
        for block in view.text_blocks(text):
            inside = queries[(queries >= block.first) & (queries < block.first + len(block.at_T))] - block.first
            coded = block.visible_HTS
            if len(inside):
                exact.append(self._top(block.select(inside)))
                if self.pool == 1:  # cells with an exact score need no code
                    coded = _without(coded, inside, exact[-1][0])
            shown = block.scores_HTS.float().masked_fill(~coded, -math.inf)
            self._raise_cells(scores, block, shown)
            if not self.softmax or self.pool > 1:
                self._raise_cells(weights, block, block.magnitude_HTS.float())
                self._raise_cells(negative, block, -block.weights_HTS.float())
        keys, key_scores, key_weights, rest, seen = (torch.cat(parts, dim=1) for parts in zip(*exact, strict=True))
        arrays = _score_codes(scores) | {
            "key_at": keys.numpy().astype(np.uint32),
            "score_at": key_scores.numpy().astype(np.float32),
            "rest": rest.numpy().astype(np.float32),
            "seen": seen.numpy().astype(np.uint32),
        }
        if not self.softmax or self.pool > 1:
            arrays |= _weight_codes(weights, negative > 0)
        if not self.softmax:
            arrays["weight_at"] = key_weights.numpy().astype(np.float32)
        self._layers[view.layer] = (_heads(view, key_groups(view, text, block)), arrays)

    def _raise_cells(self, cells_HGG: Tensor, block: Block, map_HTS: Tensor) -> None:
        """Raise each cell to the largest value of the block in it."""
        side = cells_HGG.shape[-1]
        padded = torch.nn.functional.pad(map_HTS, (0, side * self.pool - map_HTS.shape[-1]), value=-math.inf)
        pooled_HTG = padded if self.pool == 1 else padded.view(*padded.shape[:2], side, self.pool).amax(-1)
        first = block.first
        for row in range(first // self.pool, (first + len(block.at_T) - 1) // self.pool + 1):
            inside = slice(max(0, row * self.pool - first), (row + 1) * self.pool - first)
            cells_HGG[:, row] = torch.maximum(cells_HGG[:, row], pooled_HTG[:, inside].amax(1))

    def _top(self, block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Positions, scores and weights of the largest weights, H Q K; log-sum of the rest and visible keys, H Q."""
        visible, scores = block.visible_HTS, block.scores_HTS
        size = torch.where(visible, block.magnitude_HTS, -1.0)
        # Keys of equal weight, such as refused ones, are ordered by their scores.
        order = size + 1e-9 * torch.sigmoid(scores) * visible
        keys = order.topk(min(self.keys, order.shape[-1]), dim=-1).indices
        shown = visible.gather(-1, keys)
        others = scores.double().masked_fill(~visible, -math.inf).scatter(-1, keys, -math.inf)
        missing = (0, self.keys - keys.shape[-1])
        at = torch.nn.functional.pad(torch.where(shown, keys, NO_KEY), missing, value=NO_KEY)
        score, weight = (
            torch.nn.functional.pad(torch.where(shown, x.gather(-1, keys), 0.0), missing)
            for x in (scores, block.weights_HTS)
        )
        # Relative to the largest stored score, because an fp32 number near 20 is only known to 1e-6.
        largest = torch.where(shown, scores.double().gather(-1, keys), -math.inf).amax(-1)
        return at, score, weight, torch.logsumexp(others, dim=-1) - largest.nan_to_num(neginf=0.0), block.n_HT

    def maps(self, text: int, swap: str | None = None) -> TextMaps:
        """The record of the visited layers."""
        layers = [self._layers[layer] for layer in sorted(self._layers)]
        arrays = {name: np.concatenate([values[name] for _, values in layers]) for name in layers[0][1]}
        return TextMaps(
            text=text,
            swap=swap,
            tokens=tuple(piece[:200] for piece in self.pieces),
            pool=self.pool,
            queries=tuple(self.queries),
            keys=self.keys,
            heads=tuple(head for heads, _ in layers for head in heads),
            arrays={name: _packed(values) for name, values in arrays.items()},
        )


def _without(visible_HTS: Tensor, rows: Tensor, keys_HQK: Tensor) -> Tensor:
    """Visible keys without the stored ones of some rows."""
    stored = torch.zeros(visible_HTS.shape[0], len(rows), visible_HTS.shape[-1] + 1, dtype=torch.bool)
    stored.scatter_(-1, keys_HQK.clamp_max(visible_HTS.shape[-1]), True)
    left = visible_HTS.clone()
    left[:, rows] &= ~stored[..., :-1]
    return left


def _heads(view: LayerView, groups: list[tuple[KeyGroup, ...]]) -> list[MapHead]:
    rule = lens_maps.OTHER
    if view.mechanism.name == SOFTMAX.name:
        rule = lens_maps.SOFTMAX
    elif Promise.ABSOLUTE in view.mechanism.holds:
        rule = lens_maps.ABSOLUTE
    threshold_H = threshold(view)
    window_H, acceptance_H = (per_head_scalar(view, name) for name in ("effective_window", "acceptance"))
    return [
        MapHead(
            layer=view.layer,
            head=head,
            rule=rule,
            mechanism=view.mechanism.name,
            threshold=_of(threshold_H, head),
            window=_of(window_H, head),
            acceptance=_of(acceptance_H, head),
            groups=groups[head],
        )
        for head in range(view.heads)
    ]


def _of(values_H: Tensor | None, head: int) -> float | None:
    return None if values_H is None else float(values_H[head])


def _score_codes(scores_HGG: Tensor) -> Arrays:
    known = scores_HGG.isfinite()
    low = scores_HGG.masked_fill(~known, math.inf).amin(-1).nan_to_num(posinf=0.0)
    high = scores_HGG.amax(-1).nan_to_num(neginf=0.0)
    step = ((high - low) / (LEVELS - 1)).clamp_min(0)
    code = ((scores_HGG - low[..., None]) / step.clamp_min(1e-30)[..., None]).nan_to_num(neginf=0.0).round()
    code = torch.where(known, code.clamp(0, LEVELS - 1) + 1, 0.0)
    return {
        "score_codes": _lower(code),
        "score_low": low.numpy().astype(np.float32),
        "score_step": step.numpy().astype(np.float32),
    }


def _weight_codes(weights_HGG: Tensor, negative_HGG: Tensor) -> Arrays:
    peak = weights_HGG.flatten(1).amax(1).clamp_min(0)
    tenths = 10 * torch.log10((weights_HGG / peak[:, None, None]).nan_to_num(nan=0.0, neginf=0.0))
    code = torch.where(weights_HGG > 0, (LEVELS + tenths).round().clamp(1, LEVELS), 0.0)
    return {"weight_codes": _lower(code + 64 * negative_HGG), "peak": peak.numpy().astype(np.float32)}


def _lower(map_HGG: Tensor) -> npt.NDArray[np.uint8]:
    """The lower triangles of square maps, row by row."""
    rows, columns = torch.tril_indices(*map_HGG.shape[1:]).unbind()
    return map_HGG[:, rows, columns].numpy().astype(np.uint8)


def _packed(values: npt.NDArray[np.generic]) -> str:
    return pack(_TYPES[values.dtype], values.astype(values.dtype.newbyteorder("<")).tobytes())
