"""Absolute percentile: the rank of a key's raw score among the scores of the same head on unrelated text.

A weight compares a key with the other keys of its row; the percentile compares it with keys of unrelated text. Among
many unrelated keys some score high by chance, so a bright key is also compared with the top score of each unrelated
row: if most of those are higher, the key is bright only because the competing keys are weaker.

A key of an absolute mechanism is never bright for that reason: other keys cannot change its weight.

The first key is excluded from both, because sinks have unusual scores.

Letters: H heads, T queries, S keys, L levels.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from keysift.lens.diagnostics.rows import Numbers
from keysift.lens.layer_view import Block, LayerView
from keysift.lens.model import LensModel
from keysift.lens.unrelated_text import unrelated_tokens

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0)
BRIGHT = 0.3  # share of the mass from which a key is bright
ORDINARY = 0.5  # below this share of unrelated rows, most of them have a higher top score
MOST = 2**16  # scores per head in the calibration


@dataclass(frozen=True)
class Calibration:
    """For each layer, quantiles at LEVELS of the scores on unrelated text, and of the top score of each row, H L."""

    tokens: int
    scores: dict[int, Tensor]
    best: dict[int, Tensor]

    @staticmethod
    def percentile(table_HL: Tensor, scores_HX: Tensor) -> Tensor:
        """Percentile of each score: linear between levels, 0 below and 1 above all unrelated scores."""
        levels = torch.tensor(LEVELS)
        right = torch.searchsorted(table_HL, scores_HX.contiguous().to(table_HL.dtype), right=True)
        right = right.clamp(1, len(LEVELS) - 1)
        low, high = table_HL.gather(1, right - 1), table_HL.gather(1, right)
        share = ((scores_HX - low) / (high - low)).nan_to_num(nan=1.0, posinf=1.0, neginf=0.0).clamp(0, 1)
        return levels[right - 1] + share * (levels[right] - levels[right - 1])


def calibrate(model: LensModel, length: int) -> Calibration:
    """Quantiles of the scores on `length` tokens of unrelated text, the length of the longest inspected text."""
    ids = [*model.encode(""), *unrelated_tokens(model, length)][:length]
    scores: dict[int, list[Tensor]] = {}
    best: dict[int, list[Tensor]] = {}

    def visit(view: LayerView) -> None:
        for block in view.blocks(every=max(1, len(ids) ** 2 // 2 // MOST)):
            rows = torch.nonzero(block.at_T > 0).flatten()
            if len(rows):
                visible, block_scores = block.visible_HTS[0, rows, 1:], block.scores_HTS[:, rows, 1:]
                scores.setdefault(block.layer, []).append(block_scores[:, visible])
                best.setdefault(block.layer, []).append(block_scores.masked_fill(~visible, -math.inf).amax(-1))

    model.run([ids], visit)
    return Calibration(len(ids), _tables(scores), _tables(best))


def _tables(parts: dict[int, list[Tensor]]) -> dict[int, Tensor]:
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    return {layer: _quantiles(torch.cat(blocks, dim=1).double(), levels) for layer, blocks in parts.items()}


def _quantiles(scores_HX: Tensor, levels: Tensor) -> Tensor:
    ordered = scores_HX.sort(dim=1).values
    at = levels * (ordered.shape[1] - 1)
    low = at.floor().long()
    high = at.ceil().long()
    return ordered[:, low] + (at - low) * (ordered[:, high] - ordered[:, low])


def brightness(block: Block, calibration: Calibration, *, absolute: bool = False) -> tuple[Numbers, Tensor]:
    """Percentiles of the brightest key of each row, and whether it is bright and below unrelated text; and that key.

    `absolute` states that the mechanism weighs each key on its own: no key is only relatively bright, so NaN.
    """
    mass = block.magnitude_HTS.sum(-1)
    weight, key_HT = block.brightest_HT
    score = block.scores_HTS.gather(-1, key_HT[..., None])[..., 0]
    percentile = calibration.percentile(calibration.scores[block.layer], score)
    among_best = calibration.percentile(calibration.best[block.layer], score)
    share = weight / mass
    defined = (weight > 0) & (mass > 0) & (block.n_HT > 1)
    bright = defined & (share >= BRIGHT)
    numbers = {
        "brightest_weight": torch.where(defined, share, math.nan),
        "brightest_percentile": torch.where(defined, percentile, math.nan).to(score.dtype),
        "bright": torch.where(defined, bright.to(score.dtype), math.nan),
        "brightest_among_best": torch.where(defined, among_best, math.nan).to(score.dtype),
        # Defined for bright keys of relative mechanisms only.
        "only_relatively_bright": torch.where(
            bright & (not absolute), (among_best < ORDINARY).to(score.dtype), math.nan
        ),
    }
    return numbers, key_HT


class Examples:
    """Bright keys that score below unrelated text: those with the lowest percentiles, a few per head."""

    def __init__(self, each: int = 3) -> None:
        self.each = each
        self._by_head: dict[tuple[int, int], list[tuple[float, dict[str, Any]]]] = {}

    def add(self, block: Block, text: int, numbers: Numbers, key_HT: Tensor) -> None:
        low = torch.where(numbers["only_relatively_bright"] == 1, numbers["brightest_among_best"], math.inf)
        values, rows = low.topk(min(self.each, low.shape[1]), dim=1, largest=False)
        for head in range(low.shape[0]):
            of_head = self._by_head.setdefault((block.layer, head), [])
            for value, row in zip(values[head].tolist(), rows[head].tolist(), strict=True):
                if math.isfinite(value):
                    example = {
                        "layer": block.layer,
                        "head": head,
                        "text": text,
                        "query": block.first + row,
                        "key": int(key_HT[head, row]),
                        "weight": float(numbers["brightest_weight"][head, row]),
                        "percentile": float(numbers["brightest_percentile"][head, row]),
                        "among_best": value,
                    }
                    of_head.append((value, example))
            of_head.sort(key=lambda pair: pair[0])
            del of_head[self.each :]

    def lowest(self, count: int) -> list[dict[str, Any]]:
        """The `count` examples with the lowest percentiles over all heads."""
        pairs = sorted((pair for of_head in self._by_head.values() for pair in of_head), key=lambda pair: pair[0])
        return [example for _, example in pairs[:count]]
