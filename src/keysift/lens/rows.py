"""Diagnostics that every row of every head gets: how spread out it is, where its mass lies, whether it could focus.

Each function takes a block and gives H x T numbers by name; NaN where a number has no meaning. A row whose weights do
not sum to one (a mechanism that can refuse) is divided by its sum where a distribution is asked for.

Letters: H heads, T queries, S keys.
"""

import math

import torch
from torch import Tensor

from keysift.lens.reading import Block

Numbers = dict[str, Tensor]
RETAINED = (1, 2, 4, 8, 16, 32, 64)
HALF = 0.5  # the mass a head must be able to give one key to count as focused


def spread_out(block: Block) -> Numbers:
    """Entropy, effective number of keys and largest weight, with and without the first key (the usual sink)."""
    n_HT = block.seen_HTS.sum(-1)
    found = _distribution("", block.weights_HTS, n_HT)
    later = block.weights_HTS.clone()
    later[..., 0] = 0
    return found | _distribution("_without_first", later, n_HT - block.seen_HTS[..., 0].long())


def _distribution(suffix: str, weights_HTS: Tensor, n_HT: Tensor) -> Numbers:
    size_HTS = weights_HTS.abs()
    mass_HT1 = size_HTS.sum(-1, keepdim=True)
    p_HTS = size_HTS / mass_HT1
    n_HT = n_HT.to(p_HTS.dtype)
    entropy = torch.special.entr(p_HTS).sum(-1)
    alone = n_HT < 2
    return {
        f"entropy{suffix}": entropy,
        f"entropy_share{suffix}": torch.where(alone, math.nan, entropy / n_HT.log()),
        f"effective_keys{suffix}": entropy.exp(),
        f"effective_share{suffix}": entropy.exp() / n_HT,
        f"participation{suffix}": 1 / p_HTS.square().sum(-1),
        f"largest_weight{suffix}": p_HTS.amax(-1),
        f"times_uniform{suffix}": p_HTS.amax(-1) * n_HT,
    }


def where(block: Block) -> Numbers:
    """Share of the row's mass on the first key, the query's own key and the one before; and the sum of the row."""
    size, at_T = block.weights_HTS.abs(), block.at_T
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
    n_HT = block.seen_HTS.sum(-1)
    high = block.scores_HTS.masked_fill(~block.seen_HTS, -math.inf).amax(-1)
    low = block.scores_HTS.masked_fill(~block.seen_HTS, math.inf).amin(-1)
    spread = torch.where(n_HT > 1, high - low, math.nan)
    required = torch.where(n_HT > 1, torch.log((n_HT - 1) * HALF / (1 - HALF)), math.nan)
    return {"spread": spread, "required_spread": required, "can_focus": _mark(spread >= required, n_HT > 1)}


def retained(block: Block) -> Numbers:
    """Share of the row's mass on its N heaviest keys."""
    size_HTS = block.weights_HTS.abs()
    most = min(max(RETAINED), size_HTS.shape[-1])
    heaviest = size_HTS.topk(most, dim=-1).values.cumsum(-1)
    mass_HT = size_HTS.sum(-1)
    n_HT = block.seen_HTS.sum(-1)
    return {
        f"retained_{count}": torch.where(n_HT > count, heaviest[..., count - 1] / mass_HT, math.nan)
        for count in RETAINED
        if count <= most
    }


def accepted(block: Block, threshold_H: Tensor) -> Numbers:
    """For mechanisms that refuse: how many keys pass, and how far scores stand from the threshold."""
    n_HT = block.seen_HTS.sum(-1)
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
