"""Diagnostics per row: dispersion, mass by position, ability to focus, accepted keys.

A row holds the weights of one query; its mass is the sum of their magnitudes. Each function takes a block and returns
tensors H T by name, NaN where a number is undefined. Shares and entropies divide a row by its mass.

Letters: H heads, T queries, S keys.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.lens.layer_view import Block

Numbers = dict[str, Tensor]  # H T each
RETAINED = (1, 2, 4, 8, 16, 32, 64)  # values of N in retained_N
HALF = 0.5  # the share of the mass that a focused row gives to one key
MASS = 0.9  # share of the mass that keys_for_mass covers


def dispersion(block: Block) -> Numbers:
    """Entropy, effective keys and largest weight, with and without the first key (the usual sink)."""
    magnitude_HTS, n_HT = block.magnitude_HTS, block.n_HT
    entropies_HTS = torch.special.entr(magnitude_HTS)  # -s log s
    # Sum the other keys first: subtracting the sink from the total would lose precision.
    others = Moments(
        n_HT - block.visible_HTS[..., 0].long(),
        magnitude_HTS[..., 1:].sum(-1),
        entropies_HTS[..., 1:].sum(-1),
        torch.linalg.vector_norm(magnitude_HTS[..., 1:], dim=-1).square(),
        block.brightest_HT[0],
    )
    first, first_entropy = magnitude_HTS[..., 0], entropies_HTS[..., 0]
    all_keys = Moments(
        n_HT,
        others.mass + first,
        others.entropies + first_entropy,
        others.squares + first.square(),
        torch.maximum(others.largest, first),
    )
    return all_keys.numbers("") | others.numbers("_without_first")


@dataclass(frozen=True)
class Moments:
    """Number of keys n; sum s, sum -s log s, sum s^2 and max s over the magnitudes s of their weights."""

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


def mass_by_position(block: Block) -> Numbers:
    """Share of the mass on the first key, the query's own key and the key before it; sum of the weights."""
    magnitude, at_T = block.magnitude_HTS, block.at_T
    heads, queries, _ = magnitude.shape
    rows = torch.arange(queries)
    mass = magnitude.sum(-1)
    before = magnitude[:, rows, (at_T - 1).clamp_min(0)] / mass
    return {
        "first_mass": magnitude[..., 0] / mass,
        "own_mass": magnitude[:, rows, at_T] / mass,
        "previous_mass": torch.where(at_T > 0, before, math.nan).expand(heads, queries),
        "row_mass": block.weights_HTS.sum(-1),
    }


def focus(block: Block) -> Numbers:
    """Spread (largest minus smallest) of a row's scores, and the spread needed to give one key half of the mass."""
    n_HT = block.n_HT
    high = block.scores_HTS.masked_fill(~block.visible_HTS, -math.inf).amax(-1)
    low = block.scores_HTS.masked_fill(~block.visible_HTS, math.inf).amin(-1)
    spread = torch.where(n_HT > 1, high - low, math.nan)
    required = torch.where(n_HT > 1, torch.log((n_HT - 1) * HALF / (1 - HALF)), math.nan)
    can_focus = torch.where(n_HT > 1, (spread >= required).to(torch.float32), math.nan)
    return {"spread": spread, "required_spread": required, "can_focus": can_focus}


def retained(block: Block) -> Numbers:
    """Share of the mass on the N largest weights, for rows with more than N keys."""
    magnitude_HTS = block.magnitude_HTS
    most = min(max(RETAINED), magnitude_HTS.shape[-1])
    largest = magnitude_HTS.topk(most, dim=-1).values.cumsum(-1)
    mass_HT, n_HT = magnitude_HTS.sum(-1), block.n_HT
    return {
        f"retained_{count}": torch.where(n_HT > count, largest[..., count - 1] / mass_HT, math.nan)
        for count in RETAINED
        if count <= most
    }


def accepted(block: Block) -> Numbers:
    """Number and share of keys with a nonzero weight, and whether there is none. For mechanisms with exact zeros."""
    count = (block.weights_HTS != 0).sum(-1)
    return {
        "accepted": count.double(),
        "accepted_share": count / block.n_HT,
        "refuses_all": (count == 0).double(),
    }


def threshold_distance(block: Block, threshold_H: Tensor) -> Numbers:
    """Mean and largest score of a row, minus the threshold above which keys are accepted; and the best refused key."""
    above = block.scores_HTS - threshold_H[:, None, None]
    hidden = ~block.visible_HTS
    # Keys outside a window are refused for their distance, not for their score.
    refused = block.visible_HTS & (block.weights_HTS == 0) & (above <= 0)
    best_refused = above.masked_fill(~refused, -math.inf).amax(-1)
    return {
        "refused_margin": torch.where(best_refused.isfinite(), -best_refused, math.nan),
        "threshold_distance": above.masked_fill(hidden, 0).sum(-1) / block.n_HT,
        "threshold_margin": above.masked_fill(hidden, -math.inf).amax(-1),
    }


def keys_for_mass(block: Block) -> Numbers:
    """Smallest share of visible keys with 90% of the mass, in the row and for Gaussian scores of the same deviation."""
    n, magnitude, visible = block.n_HT, block.magnitude_HTS, block.visible_HTS
    mass = magnitude.sum(-1)
    cumulative = magnitude.sort(dim=-1, descending=True).values.cumsum(-1) / mass[..., None]
    needed = (cumulative < MASS).sum(-1) + 1
    mean = block.scores_HTS.masked_fill(~visible, 0).sum(-1) / n
    variance = (block.scores_HTS - mean[..., None]).square().masked_fill(~visible, 0).sum(-1) / n
    # Softmax turns scores N(0, s^2) into mass N(s^2, s^2), so the top Phi(Phi^-1(MASS) - s) of the keys hold MASS.
    gaussian = torch.special.ndtr(torch.special.ndtri(torch.tensor(MASS)) - variance.sqrt())
    defined = (n > 1) & (mass > 0)
    return {
        "keys_for_mass": torch.where(defined, needed / n, math.nan),
        "keys_for_mass_gaussian": torch.where(defined, gaussian, math.nan),
        "score_deviation": torch.where(defined, variance.sqrt(), math.nan),
    }
