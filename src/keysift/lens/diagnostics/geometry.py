"""Distance and separability: what the largest-weight keys of a row contribute, and whether they stand apart.

Definitions of arXiv:2508.17821 and arXiv:2609.37879, partly reconstructed from prose (docs/lens-reference.md says
which). x_i are the head's value vectors, y_i = alpha_i x_i, I the N largest-weight keys of the n visible ones,
s = sum over I of y_i, D_i = |y_i - s|.

    distance    d = sum over i not in I of D_i
    bound       B max |x_i - x_j| + max over I of |x_j| (A (n - N) - B),   A and B sums of alpha_i in and outside I
    expected_subset   (n - N)/n sum_i |N/(n - 1) sum_{j != i} y_j - y_i|          (a random I, its mean taken inside)
    expected_output   (n - N)/n sum_i |sum_{j != i} y_j - y_i|                    (the full output in place of s)
    recall = share of I with D_i below r, r the least D_j outside I;  precision = N / (N + those outside I with D_j at
    most the largest D_i in I);  f = their harmonic mean
    recall_lower <= recall, recall_upper: Theorem 2, with xi_i >= D_i from M = max over I of |x_j| and the least
    |x_j - x_k| within I (see `theorem_2`)

Letters: H heads, Q selected queries, S keys, N largest-weight keys, V value width.
"""

import math

import torch
from torch import Tensor

from keysift.lens.diagnostics.rows import Numbers

SETS = (1, 2, 4, 8, 16, 32, 64)
BOUNDED = (5, 20)  # the bound compares every key of I with every other key, so it is computed for two N only
DISTANCES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def geometry(
    alpha_HQS: Tensor, visible_HQS: Tensor, x_HSV: Tensor, random_HQS: Tensor, shuffled_HSV: Tensor
) -> Numbers:
    """Distance at N in DISTANCES, separability at N in SETS with two null baselines, for rows with n > 2 N.

    `random_HQS` ranks keys at random and `shuffled_HSV` are values of other keys. The caller draws them, so that the
    block size has no effect.
    """
    own = Values(alpha_HQS, visible_HQS, x_HSV)
    # Null 1: the same weights on the values of other keys.
    other = Values(alpha_HQS, visible_HQS, shuffled_HSV)
    order_HQS = alpha_HQS.masked_fill(~visible_HQS, -math.inf).argsort(dim=-1, descending=True, stable=True)
    # Null 2: the same values and a random set of keys.
    chance_HQS = random_HQS.masked_fill(~visible_HQS, -math.inf).argsort(dim=-1, descending=True)
    numbers: Numbers = {}
    for count in (c for c in SETS if c < alpha_HQS.shape[-1]):
        top, chance = order_HQS[..., :count], chance_HQS[..., :count]
        numbers |= own.long(count, own.separability(top))
        nulls = {
            "recall_of_shuffled_values": other.around(top).recall(),
            "recall_of_random_sets": own.around(chance).recall(),
        }
        numbers |= own.long(count, nulls)
    for count in (c for c in DISTANCES if c < alpha_HQS.shape[-1]):
        top, chance = order_HQS[..., :count], chance_HQS[..., :count]
        distance = own.around(top).distance()
        of_count = own.expected(count) | {"distance": distance, "distance_random": own.around(chance).distance()}
        if count in BOUNDED:
            of_count |= own.bound(top, distance)
        numbers |= own.long(count, of_count)
    return numbers


class Values:
    """Rows of weights with the values that they weigh."""

    def __init__(self, alpha_HQS: Tensor, visible_HQS: Tensor, x_HSV: Tensor) -> None:
        self.alpha_HQS, self.visible_HQS, self.x_HSV = alpha_HQS, visible_HQS, x_HSV
        self.n_HQ = visible_HQS.sum(-1).to(alpha_HQS.dtype)
        self.positive_HQ = alpha_HQS.amin(-1) >= 0
        self.x2_H1S = x_HSV.square().sum(-1)[:, None]
        self.y2_HQS = alpha_HQS.square() * self.x2_H1S  # |y|^2
        self.o_HQV = alpha_HQS @ x_HSV
        self.yo_HQS = alpha_HQS * (self.o_HQV @ x_HSV.mT)  # <y, o>

    def long(self, count: int, numbers: Numbers) -> Numbers:
        """Add N to the names, and set rows with n <= 2 N to NaN."""
        return {f"{name}_{count}": torch.where(self.n_HQ > 2 * count, x, math.nan) for name, x in numbers.items()}

    def around(self, set_HQN: Tensor) -> "Around":
        picked_HQN = self.alpha_HQS.gather(-1, set_HQN)
        # A matrix product with zeros is faster than gathering the values of the set.
        s_HQV = torch.zeros_like(self.alpha_HQS).scatter_(-1, set_HQN, picked_HQN) @ self.x_HSV
        ys_HQS = self.alpha_HQS * (s_HQV @ self.x_HSV.mT)
        return Around(self, set_HQN, ys_HQS, s_HQV.square().sum(-1, keepdim=True))

    def separability(self, set_HQN: Tensor) -> Numbers:
        around = self.around(set_HQN)
        recall, precision = around.recall(), around.precision()
        cosine = around.cosine()
        cosine_recall = cosine.recall()
        lower, upper = theorem_2(
            self.alpha_HQS.gather(-1, set_HQN), self.gathered(set_HQN), around.outside_HQS.amin(-1).sqrt()
        )
        return {
            "recall": recall,
            "precision": precision,
            "f": _harmonic(precision, recall),
            "cosine_recall": cosine_recall,
            "cosine_f": _harmonic(cosine.precision(), cosine_recall),
            "recall_lower": torch.where(self.positive_HQ, lower.clamp_min(0), math.nan),
            "recall_upper": torch.where(self.positive_HQ, upper, math.nan),
        }

    def expected(self, count: int) -> Numbers:
        left = (self.n_HQ - count) / self.n_HQ
        share = (count / (self.n_HQ - 1))[..., None]
        return {
            "distance_expected_subset": left * self._norms(share).sum(-1),
            "distance_expected_output": left * self._norms(torch.ones_like(share)).sum(-1),
        }

    def _norms(self, share_HQ1: Tensor) -> Tensor:
        """|share (o - y_i) - y_i| of every visible key."""
        o2 = self.o_HQV.square().sum(-1, keepdim=True)
        own = 1 + share_HQ1
        squared = share_HQ1.square() * o2 - 2 * share_HQ1 * own * self.yo_HQS + own.square() * self.y2_HQS
        return squared.clamp_min_(0).sqrt_().masked_fill_(~self.visible_HQS, 0)

    def bound(self, set_HQN: Tensor, distance_HQ: Tensor) -> Numbers:
        """Theorem 1 (1) in its linear form, for rows without negative weights; and the distance relative to it."""
        kept = self.alpha_HQS.gather(-1, set_HQN).sum(-1)
        tail = self.alpha_HQS.sum(-1) - kept
        longest = self.gathered(set_HQN).norm(dim=-1).amax(-1)
        left = self.n_HQ - set_HQN.shape[-1]
        bound = tail * self._farthest(set_HQN) + longest * (kept * left - tail)
        bound = torch.where(self.positive_HQ, bound, math.nan)
        return {
            "distance_bound": bound,
            "distance_tightness": distance_HQ / bound,
            "distance_share": distance_HQ / (left * self.o_HQV.norm(dim=-1)),
        }

    def gathered(self, set_HQN: Tensor) -> Tensor:
        """The values of a set, H Q N V."""
        heads, rows, count = set_HQN.shape
        index = set_HQN.reshape(heads, rows * count, 1).expand(-1, -1, self.x_HSV.shape[2])
        return self.x_HSV.gather(1, index).view(heads, rows, count, -1)

    def _farthest(self, set_HQN: Tensor) -> Tensor:
        """The largest distance between a value in the set and one outside, one key of the set at a time."""
        hidden_HQS = (~self.visible_HQS).scatter(-1, set_HQN, True)
        most = torch.zeros_like(self.n_HQ)
        chosen_HQNV = self.gathered(set_HQN)
        for place in range(set_HQN.shape[-1]):
            chosen_HQV = chosen_HQNV[:, :, place]
            # |x - y|^2 - |x|^2 saves one array of this size; |x|^2 is constant in a row and added after the maximum.
            away_HQS = self.x2_H1S - 2 * (chosen_HQV @ self.x_HSV.mT)
            far_HQ = away_HQS.masked_fill_(hidden_HQS, -math.inf).amax(-1) + chosen_HQV.square().sum(-1)
            most = torch.maximum(most, far_HQ.clamp_min(0).sqrt())
        return most


class Around:
    """Distance of every key from the sum over a set: D squared, or another measure with which to order keys."""

    def __init__(self, of: Values, set_HQN: Tensor, ys_HQS: Tensor, s2_HQ1: Tensor) -> None:
        self._of, self._set_HQN, self._ys_HQS, self._s2_HQ1 = of, set_HQN, ys_HQS, s2_HQ1
        # |y - s|^2 = |s|^2 - 2 <y, s> + |y|^2
        self._measure((s2_HQ1 - 2 * ys_HQS + of.y2_HQS).clamp_min_(0))

    def _measure(self, far_HQS: Tensor) -> None:
        self.inside_HQN = far_HQS.gather(-1, self._set_HQN)
        # Keys that are hidden or in the set are infinitely far.
        self.outside_HQS = far_HQS.masked_fill_(~self._of.visible_HQS, math.inf).scatter_(-1, self._set_HQN, math.inf)

    def cosine(self) -> "Around":
        """The same with 1 - cos(y_i, s) as the distance; a zero weight counts as orthogonal."""
        around = Around(self._of, self._set_HQN, self._ys_HQS, self._s2_HQ1)
        around._measure(1 - self._ys_HQS / (self._of.y2_HQS.sqrt() * self._s2_HQ1.sqrt() + 1e-12))
        return around

    def recall(self) -> Tensor:
        nearest = self.outside_HQS.amin(-1, keepdim=True)
        return (self.inside_HQN < nearest).sum(-1) / self._set_HQN.shape[-1]

    def precision(self) -> Tensor:
        farthest = self.inside_HQN.amax(-1, keepdim=True)
        count = self._set_HQN.shape[-1]
        return count / (count + (self.outside_HQS <= farthest).sum(-1))

    def distance(self) -> Tensor:
        return self.outside_HQS.masked_fill(self.outside_HQS == math.inf, 0).sqrt_().sum(-1)


def _harmonic(precision: Tensor, recall: Tensor) -> Tensor:
    return 2 * precision * recall / (precision + recall)


def theorem_2(alpha_HQN: Tensor, x_HQNV: Tensor, r_HQ: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of Theorem 2 on separability, from the weights and values of a set and the radius r:

        1 - sum_i xi_i / (r N)  and  mean_i exp(-max(xi_i - r, 0)^2 / (2 M^2)),
        xi_i^2 = M^2 sum_{j != i} alpha_j^2 + (M^2 - delta^2 / 2) sum_{j != k; j, k != i} alpha_j alpha_k

    M is the largest norm and delta the smallest distance of the set's values, so xi_i >= D_i in every row and the lower
    bound holds for each row, without the random vectors of the theorem. The upper side would need xi_i below the mean
    of D_i; as published it is not a bound.
    """
    count = alpha_HQN.shape[-1]
    longest2 = x_HQNV.square().sum(-1).amax(-1, keepdim=True)
    near2 = _least_squared_distance(x_HQNV)[..., None]
    rest = alpha_HQN.sum(-1, keepdim=True) - alpha_HQN
    squares = alpha_HQN.square().sum(-1, keepdim=True) - alpha_HQN.square()
    pairs = (rest.square() - squares).clamp_min(0)
    xi = (longest2 * rest.square() - near2 / 2 * pairs).clamp_min(0).sqrt()
    lower = 1 - xi.sum(-1) / (r_HQ * count)
    upper = torch.exp(-(xi - r_HQ[..., None]).clamp_min(0).square() / (2 * longest2)).mean(-1)
    return lower, upper


def _least_squared_distance(x_HQNV: Tensor) -> Tensor:
    """Smallest squared distance between two members of each set; 0 for a set of one, where it is not used."""
    count = x_HQNV.shape[-2]
    if count == 1:
        return torch.zeros_like(x_HQNV[..., 0, 0])
    x2 = x_HQNV.square().sum(-1)
    apart = x2[..., :, None] + x2[..., None, :] - 2 * (x_HQNV @ x_HQNV.mT)
    return apart.masked_fill_(torch.eye(count, dtype=torch.bool), math.inf).flatten(-2).amin(-1).clamp_min(0)
