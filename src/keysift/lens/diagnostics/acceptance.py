"""Keys that a head would accept with another acceptance width r, for mechanisms that have one (screening).

A key passes at width r if its cosine exceeds 1 - r and it is inside the window. Counted on the scores of the inspected
texts; the scores of later layers would change too if r did, which this does not measure.

Letters: H heads, T queries, S keys, R widths.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from keysift.lens.layer_view import Block, LayerView
from keysift.mechanisms.spec import Per

WIDTHS = tuple(round(0.05 * step, 2) for step in range(1, 21))


@dataclass
class AcceptanceCurves:
    """Sums over the rows of one layer, H R."""

    acceptance_H: Tensor
    window_H: Tensor
    passing_HR: Tensor = field(init=False)
    empty_HR: Tensor = field(init=False)
    rows: int = 0

    def __post_init__(self) -> None:
        self.passing_HR, self.empty_HR = (torch.zeros(len(self.acceptance_H), len(WIDTHS)) for _ in range(2))

    @classmethod
    def of(cls, view: LayerView) -> "AcceptanceCurves | None":
        """Empty curves of a layer; None if its mechanism has no acceptance width."""
        acceptance, window = (per_head_scalar(view, name) for name in ("acceptance", "effective_window"))
        if acceptance is None or window is None or not view.mechanism.cosine_scores:
            return None
        return cls(acceptance, window)

    def add(self, block: Block) -> None:
        distance_TS = block.at_T[:, None] - torch.arange(block.scores_HTS.shape[-1])
        inside_HTS = block.visible_HTS & (distance_TS < self.window_H[:, None, None])
        cosines_HTS = block.scores_HTS.masked_fill(~inside_HTS, -2.0)
        for index, width in enumerate(WIDTHS):
            passing_HT = (cosines_HTS > 1 - width).sum(-1)
            self.passing_HR[:, index] += passing_HT.sum(1)
            self.empty_HR[:, index] += (passing_HT == 0).sum(1)
        self.rows += len(block.at_T)


def per_head_scalar(view: LayerView, name: str) -> Tensor | None:
    """A scalar with one number per head, if the mechanism has it."""
    if all(scalar.name != name or scalar.per != Per.HEAD for scalar in view.mechanism.scalars):
        return None
    return view.call.scalars[name].flatten().expand(view.heads)


def acceptance_test(layers: Mapping[int, AcceptanceCurves]) -> dict[str, Any]:
    """For each head: keys that pass per query, and the share of queries where none does, at each width."""
    heads = [
        {
            "layer": layer,
            "head": head,
            "acceptance": float(curves.acceptance_H[head]),
            "passing": (curves.passing_HR[head] / curves.rows).tolist(),
            "empty": (curves.empty_HR[head] / curves.rows).tolist(),
        }
        for layer, curves in sorted(layers.items())
        for head in range(len(curves.acceptance_H))
    ]
    return {"widths": list(WIDTHS), "heads": heads}
