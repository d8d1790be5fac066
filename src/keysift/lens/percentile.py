"""Absolute percentile: where a key's raw score stands among the scores the same head gives to unrelated text.

A weight says how a key compares with the keys beside it; the percentile says how it compares with keys that have
nothing to do with the text. Among many unrelated keys some score high by chance, so a bright key is also compared with
the best key of each unrelated row: if those score higher more often than not, it is bright only in its company.

The first key is left out of both: sinks have scores of their own.

Letters: H heads, T queries, S keys, L levels.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from keysift.lens.filler import filler
from keysift.lens.reading import Block, Reading
from keysift.lens.rows import Numbers
from keysift.lens.subject import Subject

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 1.0)
BRIGHT = 0.3  # of the row's mass
ORDINARY = 0.5  # of unrelated rows: below, the best key of most of them scores higher
MOST = 2**16  # scores of each head that are kept for the calibration


@dataclass(frozen=True)
class Calibration:
    """For each layer the scores of unrelated keys at LEVELS, and those of the best key of each row, H L."""

    tokens: int
    scores: dict[int, Tensor]
    best: dict[int, Tensor]

    @staticmethod
    def percentile(table_HL: Tensor, scores_HX: Tensor) -> Tensor:
        """Linear between levels, 0 below and 1 above everything unrelated text reached."""
        levels = torch.tensor(LEVELS)
        right = torch.searchsorted(table_HL, scores_HX.contiguous().to(table_HL.dtype), right=True)
        right = right.clamp(1, len(LEVELS) - 1)
        low, high = table_HL.gather(1, right - 1), table_HL.gather(1, right)
        share = ((scores_HX - low) / (high - low)).nan_to_num(nan=1.0, posinf=1.0, neginf=0.0).clamp(0, 1)
        return levels[right - 1] + share * (levels[right] - levels[right - 1])


def calibrate(subject: Subject, length: int, text: str | None = None) -> Calibration:
    """From the built-in unrelated text, or from another one, as long as the texts that will be inspected."""
    start = subject.encode("")
    ids = start + (filler(subject, length) if text is None else subject.encode(text)[len(start) :])
    ids = ids[:length]
    kept: dict[int, list[Tensor]] = {}
    best: dict[int, list[Tensor]] = {}

    def visit(reading: Reading) -> None:
        for block in reading.blocks(every=max(1, len(ids) ** 2 // 2 // MOST)):
            rows = torch.nonzero(block.at_T > 0).flatten()
            if len(rows):
                seen, scores = block.seen_HTS[0, rows, 1:], block.scores_HTS[:, rows, 1:]
                kept.setdefault(block.layer, []).append(scores[:, seen])
                best.setdefault(block.layer, []).append(scores.masked_fill(~seen, -math.inf).amax(-1))

    subject.run([ids], visit)
    return Calibration(len(ids), _tables(kept), _tables(best))


def _tables(parts: dict[int, list[Tensor]]) -> dict[int, Tensor]:
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    return {layer: _quantiles(torch.cat(found, dim=1).double(), levels) for layer, found in parts.items()}


def _quantiles(scores_HX: Tensor, levels: Tensor) -> Tensor:
    ordered = scores_HX.sort(dim=1).values
    at = levels * (ordered.shape[1] - 1)
    low = at.floor().long()
    high = at.ceil().long()
    return ordered[:, low] + (at - low) * (ordered[:, high] - ordered[:, low])


def brightness(block: Block, calibration: Calibration) -> tuple[Numbers, Tensor]:
    """Of the heaviest key but the first: its percentiles, whether it is bright and ordinary; and which key it is."""
    mass = block.size_HTS.sum(-1)
    weight, key_HT = block.brightest_HT
    score = block.scores_HTS.gather(-1, key_HT[..., None])[..., 0]
    percentile = calibration.percentile(calibration.scores[block.layer], score)
    among_best = calibration.percentile(calibration.best[block.layer], score)
    share = weight / mass
    there = (weight > 0) & (mass > 0) & (block.n_HT > 1)
    bright = there & (share >= BRIGHT)
    found = {
        "brightest_weight": torch.where(there, share, math.nan),
        "brightest_percentile": torch.where(there, percentile, math.nan).to(score.dtype),
        "bright": torch.where(there, bright.to(score.dtype), math.nan),
        "brightest_among_best": torch.where(there, among_best, math.nan).to(score.dtype),
        # Among bright keys only: the share that most unrelated rows would have outdone.
        "only_relatively_bright": torch.where(bright, (among_best < ORDINARY).to(score.dtype), math.nan),
    }
    return found, key_HT


class Examples:
    """The bright keys with the lowest percentiles, a few for each head."""

    def __init__(self, each: int = 3) -> None:
        self.each = each
        self._found: dict[tuple[int, int], list[tuple[float, dict[str, Any]]]] = {}

    def add(self, block: Block, text: int, numbers: Numbers, key_HT: Tensor) -> None:
        low = torch.where(numbers["only_relatively_bright"] == 1, numbers["brightest_among_best"], math.inf)
        values, rows = low.topk(min(self.each, low.shape[1]), dim=1, largest=False)
        for head in range(low.shape[0]):
            mine = self._found.setdefault((block.layer, head), [])
            for value, row in zip(values[head].tolist(), rows[head].tolist(), strict=True):
                if math.isfinite(value):
                    facts = {
                        "layer": block.layer,
                        "head": head,
                        "text": text,
                        "query": block.first + row,
                        "key": int(key_HT[head, row]),
                        "weight": float(numbers["brightest_weight"][head, row]),
                        "percentile": float(numbers["brightest_percentile"][head, row]),
                        "among_best": value,
                    }
                    mine.append((value, facts))
            mine.sort(key=lambda pair: pair[0])
            del mine[self.each :]

    def lowest(self, count: int) -> list[dict[str, Any]]:
        every = sorted((pair for mine in self._found.values() for pair in mine), key=lambda pair: pair[0])
        return [facts for _, facts in every[:count]]
