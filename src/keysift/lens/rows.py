"""Diagnostics that every row of every head gets: how spread out it is, where its mass lies, whether it could focus.

Each function takes a block and gives H x T numbers by name; NaN where a number has no meaning. A row whose weights do
not sum to one (a mechanism that can refuse) is divided by its sum where a distribution is asked for.

Letters: H heads, T queries, S keys.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.lens.reading import Block

Numbers = dict[str, Tensor]
RETAINED = (1, 2, 4, 8, 16, 32, 64)
HALF = 0.5  # the mass a head must be able to give one key to count as focused


def spread_out(block: Block) -> Numbers:
    """Entropy, effective number of keys and largest weight, with and without the first key (the usual sink)."""
    size_HTS, n_HT = block.size_HTS, block.n_HT
    each_HTS = torch.special.entr(size_HTS)  # -s log s
    # The sums of the other keys come first: taking the sink's share off the whole would cost their digits.
    others = Moments(
        n_HT - block.seen_HTS[..., 0].long(),
        size_HTS[..., 1:].sum(-1),
        each_HTS[..., 1:].sum(-1),
        torch.linalg.vector_norm(size_HTS[..., 1:], dim=-1).square(),
        block.brightest_HT[0],
    )
    first, its = size_HTS[..., 0], each_HTS[..., 0]
    every = Moments(
        n_HT,
        others.mass + first,
        others.entropies + its,
        others.squares + first.square(),
        torch.maximum(others.largest, first),
    )
    return every.numbers("") | others.numbers("_without_first")


@dataclass(frozen=True)
class Moments:
    """Of a row's keys: how many, and of the sizes s of their weights sum s, sum -s log s, sum s^2 and max s."""

    n: Tensor
    mass: Tensor
    entropies: Tensor
    squares: Tensor
    largest: Tensor

    def numbers(self, suffix: str) -> Numbers:
        n = self.n.to(self.mass.dtype)
        # With p = s / mass: sum -p log p.
        entropy = (self.entropies / self.mass + self.mass.log()).clamp_min(0)
        largest = self.largest / self.mass
        return {
            f"entropy{suffix}": entropy,
            f"entropy_share{suffix}": torch.where(n < 2, math.nan, entropy / n.log()),
            f"effective_keys{suffix}": entropy.exp(),
            f"effective_share{suffix}": entropy.exp() / n,
            f"participation{suffix}": self.mass.square() / self.squares,
            f"largest_weight{suffix}": largest,
            f"times_uniform{suffix}": largest * n,
        }


def where(block: Block) -> Numbers:
    """Share of the row's mass on the first key, the query's own key and the one before; and the sum of the row."""
    size, at_T = block.size_HTS, block.at_T
    heads, queries, _ = size.shape
    rows = torch.arange(queries)
    mass = size.sum(-1)
    before = size[:, rows, (at_T - 1).clamp_min(0)] / mass
    return {
        "first_mass": size[..., 0] / mass,
        "own_mass": size[:, rows, at_T] / mass,
        "previous_mass": torch.where(at_T > 0, before, math.nan).expand(heads, queries),
        "row_mass": block.weights_HTS.sum(-1),
    }


def focus(block: Block) -> Numbers:
    """The spread of scores a row has, and the spread it would need to give one key half of the mass."""
    n_HT = block.n_HT
    high = block.scores_HTS.masked_fill(~block.seen_HTS, -math.inf).amax(-1)
    low = block.scores_HTS.masked_fill(~block.seen_HTS, math.inf).amin(-1)
    spread = torch.where(n_HT > 1, high - low, math.nan)
    required = torch.where(n_HT > 1, torch.log((n_HT - 1) * HALF / (1 - HALF)), math.nan)
    return {"spread": spread, "required_spread": required, "can_focus": _mark(spread >= required, n_HT > 1)}


def retained(block: Block) -> Numbers:
    """Share of the row's mass on its N heaviest keys."""
    size_HTS = block.size_HTS
    most = min(max(RETAINED), size_HTS.shape[-1])
    heaviest = size_HTS.topk(most, dim=-1).values.cumsum(-1)
    mass_HT, n_HT = size_HTS.sum(-1), block.n_HT
    return {
        f"retained_{count}": torch.where(n_HT > count, heaviest[..., count - 1] / mass_HT, math.nan)
        for count in RETAINED
        if count <= most
    }


def accepted(block: Block, threshold_H: Tensor) -> Numbers:
    """For mechanisms that refuse: how many keys pass, and how far scores stand from the threshold."""
    n_HT = block.n_HT
    passed = (block.weights_HTS != 0).sum(-1)
    away = block.scores_HTS - threshold_H[:, None, None]
    hidden = ~block.seen_HTS
    return {
        "accepted": passed.to(away.dtype),
        "accepted_share": passed / n_HT,
        "refuses_all": (passed == 0).to(away.dtype),
        "threshold_distance": away.masked_fill(hidden, 0).sum(-1) / n_HT,
        "threshold_margin": away.masked_fill(hidden, -math.inf).amax(-1),
    }


def _mark(condition: Tensor, defined: Tensor) -> Tensor:
    return torch.where(defined, condition.to(torch.float32), math.nan)
