"""What the heaviest keys of a row carry of its output, and whether they stand apart: distance and separability.

Definitions after arXiv:2508.17821 and arXiv:2609.37879, reconstructed from prose (docs/lens.md says which). x_i are the
head's value vectors, y_i = alpha_i x_i, I the N heaviest of the n visible keys, s = sum over I of y_i.

    distance    d = sum over i not in I of |y_i - s|
    bound       (1 - A) max |x_i - x_j| + max over I of |x_j| (A (n - N) - (1 - A)),   A = sum over I of alpha_i
    expected_subset   (n - N)/n sum_i |N/(n - 1) sum_{j != i} y_j - y_i|          (a random I)
    expected_output   (n - N)/n sum_i |sum_{j != i} y_j - y_i|                    (the full output in place of s)
    D_i = |y_i - s|;  recall = share of I with D_i below every D_j outside I;  precision = N / (N + those outside I
    with D_j at most the largest D_i in I);  f = their harmonic mean

Letters: H heads, Q chosen queries, S keys, N heaviest keys, V value width.
"""

import math

import torch
from torch import Tensor

from keysift.lens.rows import Numbers

SETS = (1, 2, 4, 8, 16, 32, 64)
DISTANCES = (5, 20)


def geometry(alpha_HQS: Tensor, seen_HQS: Tensor, x_HSV: Tensor, random_HQS: Tensor, shuffle_S: Tensor) -> Numbers:
    """Distance at N in DISTANCES, separability at N in SETS with two null baselines; rows with n > 2 N only.

    `random_HQS` ranks keys at random and `shuffle_S` permutes values: the caller draws them, so that the way a text
    was cut into blocks changes nothing."""
    n_HQ = seen_HQS.sum(-1)
    order_HQS = alpha_HQS.masked_fill(~seen_HQS, -math.inf).argsort(dim=-1, descending=True, stable=True)
    # The same weights on other values: whether it matters which vectors the heavy keys carry.
    shuffled = x_HSV[:, shuffle_S]
    # The same values, a random set: whether it matters that the keys are the heavy ones.
    chance_HQS = random_HQS.masked_fill(~seen_HQS, -math.inf).argsort(dim=-1, descending=True)
    found: Numbers = {}
    for count in (c for c in SETS if c < alpha_HQS.shape[-1]):
        own = Separation.of(alpha_HQS, seen_HQS, x_HSV, order_HQS[..., :count])
        cosine = own.cosine()
        scores = {
            "recall": own.recall(),
            "precision": own.precision(),
            "f": own.f(),
            "cosine_recall": cosine.recall(),
            "cosine_f": cosine.f(),
            "recall_of_shuffled_values": Separation.of(alpha_HQS, seen_HQS, shuffled, order_HQS[..., :count]).recall(),
            "recall_of_random_sets": Separation.of(alpha_HQS, seen_HQS, x_HSV, chance_HQS[..., :count]).recall(),
        }
        found |= {f"{name}_{count}": _where_long(value, n_HQ, count) for name, value in scores.items()}
    for count in (c for c in DISTANCES if c < alpha_HQS.shape[-1]):
        found |= {
            f"{name}_{count}": _where_long(value, n_HQ, count)
            for name, value in distance(alpha_HQS, seen_HQS, x_HSV, order_HQS[..., :count]).items()
        }
    return found


def _where_long(value: Tensor, n_HQ: Tensor, count: int) -> Tensor:
    return torch.where(n_HQ > 2 * count, value, math.nan)


class Separation:
    """D_i of every key against the sum over a chosen set."""

    def __init__(self, D_HQS: Tensor, chosen_HQS: Tensor, others_HQS: Tensor, dots: tuple[Tensor, ...]) -> None:
        self.D_HQS, self.chosen_HQS, self.others_HQS, self._dots = D_HQS, chosen_HQS, others_HQS, dots

    @classmethod
    def of(cls, alpha_HQS: Tensor, seen_HQS: Tensor, x_HSV: Tensor, set_HQN: Tensor) -> "Separation":
        chosen_HQS = torch.zeros_like(seen_HQS).scatter_(-1, set_HQN, True)
        s_HQV = torch.where(chosen_HQS, alpha_HQS, 0.0) @ x_HSV
        # |y - s|^2 = |s|^2 - 2 alpha <s, x> + alpha^2 |x|^2
        inner_HQS = s_HQV @ x_HSV.mT
        length2_H1S = x_HSV.square().sum(-1)[:, None]
        s2_HQ1 = s_HQV.square().sum(-1, keepdim=True)
        D_HQS = (s2_HQ1 - 2 * alpha_HQS * inner_HQS + alpha_HQS.square() * length2_H1S).clamp_min(0).sqrt()
        return cls(D_HQS, chosen_HQS, seen_HQS & ~chosen_HQS, (alpha_HQS, inner_HQS, length2_H1S, s2_HQ1))

    def cosine(self) -> "Separation":
        """The same with 1 - cos(y_i, s) for the distance; a zero weight has no direction and counts as orthogonal."""
        alpha, inner, length2, s2 = self._dots
        cos = alpha * inner / ((alpha.abs() * length2.sqrt()) * s2.sqrt() + 1e-12)
        return Separation(1 - cos, self.chosen_HQS, self.others_HQS, self._dots)

    def recall(self) -> Tensor:
        nearest = self.D_HQS.masked_fill(~self.others_HQS, math.inf).amin(-1, keepdim=True)
        inside = (nearest > self.D_HQS) & self.chosen_HQS
        return inside.sum(-1) / self.chosen_HQS.sum(-1)

    def precision(self) -> Tensor:
        farthest = self.D_HQS.masked_fill(~self.chosen_HQS, -math.inf).amax(-1, keepdim=True)
        count = self.chosen_HQS.sum(-1)
        return count / (count + ((farthest >= self.D_HQS) & self.others_HQS).sum(-1))

    def f(self) -> Tensor:
        precision, recall = self.precision(), self.recall()
        return 2 * precision * recall / (precision + recall)


def distance(alpha_HQS: Tensor, seen_HQS: Tensor, x_HSV: Tensor, set_HQN: Tensor) -> Numbers:
    own = Separation.of(alpha_HQS, seen_HQS, x_HSV, set_HQN)
    n_HQ, count = seen_HQS.sum(-1).to(alpha_HQS.dtype), set_HQN.shape[-1]
    d = own.D_HQS.masked_fill(~own.others_HQS, 0).sum(-1)
    kept = alpha_HQS.masked_fill(~own.chosen_HQS, 0).sum(-1)
    longest = x_HSV.norm(dim=-1)[:, None].masked_fill(~own.chosen_HQS, 0).amax(-1)
    bound = (1 - kept) * _farthest(x_HSV, set_HQN, own.others_HQS) + longest * (kept * (n_HQ - count) - (1 - kept))
    o_HQV = alpha_HQS @ x_HSV
    left = (n_HQ - count) / n_HQ
    share = (count / (n_HQ - 1))[..., None]
    subset = left * _norms(alpha_HQS, x_HSV, o_HQV, share, 1 + share).masked_fill(~seen_HQS, 0).sum(-1)
    one = torch.ones_like(share)
    output = left * _norms(alpha_HQS, x_HSV, o_HQV, one, 1 + one).masked_fill(~seen_HQS, 0).sum(-1)
    return {
        "distance": d,
        "distance_bound": bound,
        "distance_tightness": d / bound,
        "distance_share": d / ((n_HQ - count) * o_HQV.norm(dim=-1)),
        "distance_expected_subset": subset,
        "distance_expected_output": output,
    }


def _norms(alpha_HQS: Tensor, x_HSV: Tensor, o_HQV: Tensor, a_HQ1: Tensor, b_HQ1: Tensor) -> Tensor:
    """|a o - b y_i| for every key."""
    inner_HQS = o_HQV @ x_HSV.mT
    o2 = o_HQV.square().sum(-1, keepdim=True)
    x2 = x_HSV.square().sum(-1)[:, None]
    squared = a_HQ1.square() * o2 - 2 * a_HQ1 * b_HQ1 * alpha_HQS * inner_HQS + (b_HQ1 * alpha_HQS).square() * x2
    return squared.clamp_min(0).sqrt()


def _farthest(x_HSV: Tensor, set_HQN: Tensor, others_HQS: Tensor) -> Tensor:
    """The largest distance between a chosen value and one that is not: a key of the set at a time."""
    most = torch.zeros_like(others_HQS[..., 0], dtype=x_HSV.dtype)
    length2_H1S = x_HSV.square().sum(-1)[:, None]
    for place in range(set_HQN.shape[-1]):
        chosen_HQV = x_HSV.gather(1, set_HQN[..., place, None].expand(-1, -1, x_HSV.shape[2]))
        # |x - y|^2 - |x|^2, so that one more array of this size is not made; |x| is the same for the whole row.
        away_HQS = length2_H1S - 2 * (chosen_HQV @ x_HSV.mT)
        far_HQ = away_HQS.masked_fill(~others_HQS, -math.inf).amax(-1) + chosen_HQV.square().sum(-1)
        most = torch.maximum(most, far_HQ.clamp_min(0).sqrt())
    return most
