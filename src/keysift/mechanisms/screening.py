"""Screening: a pointwise mechanism with a learned threshold and window (Nakanishi, arXiv:2604.01178v3, eqs. 4 to 14).

    q, k, v on the unit sphere; coordinates (0, 1) of q and k rotated by phi(i) = pi i gamma(w) / w
    gamma(w) = (1 + cos(pi w / w_th)) / 2  for w < w_th, else 0      w_th = 256 in the paper
    a_ts = max(1 - (1 - q_t . k_s) / r, 0)^2 * fade(t - s)
    fade(d) = (1 + cos(pi d / w)) / 2      for 0 <= d < w, else 0
    u_t  = tanh(|h_t|) / |h_t| * h_t,  h_t = sum_s a_ts v_s

w > 0 is the tile's window (may be infinite), r in (0, 1] its acceptance width. The scalar `effective_window` is the
window of `fade`: w itself, or infinity under window expansion at inference. The rotation always uses the learned w.

Letters: B batch, H tiles, T queries, S keys, K key width, V value width.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.core.errors import ShapeError
from keysift.mechanisms import parts
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

WINDOW_THRESHOLD = 256.0  # w_th of the paper


@dataclass(frozen=True)
class Windows:
    """Initial s_w of every tile: spaced from 0 to log w_th, so windows from 2 to w_th + 1. A single tile gets 2."""

    threshold: float = WINDOW_THRESHOLD

    def __call__(self, site: Site, generator: torch.Generator | None = None) -> Tensor:
        last = math.log(self.threshold) if site.heads > 1 else 0.0
        return torch.linspace(0.0, last, site.heads, dtype=torch.float64)


def _wider_than_one(raw: Tensor, site: Site) -> Tensor:
    return raw.exp() + 1


WINDOW = Scalar(
    name="window",
    meaning="the length in tokens after which every key has relevance zero",
    per=Per.HEAD,
    init=Windows(),
    link=_wider_than_one,
    above=0.0,
    probes=(0.7, 2.0, 9.5, math.inf),
)
# In fp32 sigmoid(s_r) is 0.0 below s_r = -104. This bound is far below the resolution of fp32 near a cosine of 1.
NARROWEST = 2.0**-40


def _sigmoid(raw: Tensor, site: Site) -> Tensor:
    return raw.sigmoid().clamp_min(NARROWEST)


ACCEPTANCE = Scalar(
    name="acceptance",
    meaning="the width r of the accepted cosines (1 - r, 1]",
    per=Per.HEAD,
    link=_sigmoid,
    above=0.0,
    up_to=1.0,
    probes=(0.3, 0.5, 0.95),
)
EFFECTIVE_WINDOW = Scalar(
    name="effective_window",
    meaning="the window of the fade: the learned window, or infinity under window expansion",
    per=Per.HEAD,
    above=0.0,
    learned=False,
    follows="window",
    probes=(2.0, 9.5, math.inf),
)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate coordinates (0, 1) of x by `turns` full turns; the other coordinates are unchanged.

    `turns` is fp64 and is reduced modulo one before it becomes an angle: at position 131,071 an fp32 angle would be off
    by whole degrees.
    """
    if x.shape[-1] < 2:
        raise ShapeError(f"screening rotates two channels of every key, so keys need at least 2, got {x.shape[-1]}")
    angle = (2 * math.pi * (turns - turns.detach().floor())).to(x.dtype)
    cos, sin = angle.cos(), angle.sin()
    x0, x1 = x[..., 0], x[..., 1]
    rotated = torch.stack((x0 * cos - x1 * sin, x0 * sin + x1 * cos), dim=-1)
    return torch.cat((rotated, x[..., 2:]), dim=-1)


def mipe_rate(window: Tensor, threshold: float = WINDOW_THRESHOLD) -> Tensor:
    """MiPE (minimal positional encoding) in turns per position: gamma(w) / (2 w), and 0 from the threshold on."""
    below = window < threshold
    w = torch.where(below, window, threshold)
    gamma = (torch.cos(math.pi * w / threshold) + 1) / 2
    return torch.where(below, gamma / (2 * w), 0.0)


@dataclass(frozen=True)
class Prepare:
    """Normalise q, k and v, and rotate q and k by MiPE. Windows from the threshold on are not rotated."""

    threshold: float = WINDOW_THRESHOLD

    def __call__(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, at: Tensor, key_at: Tensor, *, window: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        rate = mipe_rate(window.double(), self.threshold)
        q_BHTK = rotate(parts.unit(q_BHTK), at * rate[..., 0])
        k_BHSK = rotate(parts.unit(k_BHSK), key_at * rate[..., 0])
        return q_BHTK, k_BHSK, parts.unit(v_BHSV)


def prepare_without_mipe(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, at: Tensor, key_at: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise without MiPE, for the paper's ablation and for other position encodings."""
    return parts.unit(q_BHTK), parts.unit(k_BHSK), parts.unit(v_BHSV)


def trim(cosine: Tensor, acceptance: Tensor | float) -> Tensor:
    """max(1 - (1 - cos) / r, 0)^2: exactly 0 if the cosine is at most 1 - r, and 1 if it is 1."""
    return torch.relu(1 - (1 - cosine) / acceptance).square()


def fade(distance: Tensor, window: Tensor) -> Tensor:
    """(1 + cos(pi d / w)) / 2 for 0 <= d < w, else 0; 1 at every d >= 0 when w is infinite.

    Integer distances decide whether a key is inside the window.
    """
    inside = (distance >= 0) & (distance < window)
    # Dividing only inside the window keeps keys outside it from contributing to the gradient of w.
    ratio = torch.where(inside, distance, 0) / window
    return torch.where(inside, (torch.cos(math.pi * ratio) + 1) / 2, 0.0)


def weigh_key(x_BHTS: Tensor, distance_BHTS: Tensor, *, acceptance: Tensor, effective_window: Tensor) -> Tensor:
    """Relevance of a key."""
    return trim(x_BHTS, acceptance) * fade(distance_BHTS, effective_window)


def tanh_norm(h: Tensor) -> Tensor:
    """TanhNorm: tanh(|h|) / |h| * h, by its series where |h| is small."""
    square = h.square().sum(-1, keepdim=True)
    small = square < 1e-8
    length = torch.where(small, 1.0, square).sqrt()
    # tanh(n)/n = 1 - n^2/3 + O(n^4): at n = 1e-4 the next term is below double precision.
    return h * torch.where(small, 1 - square / 3, torch.tanh(length) / length)


SCREENING = Mechanism(
    name="screening",
    title="Screening",
    source="arXiv:2604.01178v3",
    page="screening",
    formula="a = max(1 - (1 - cos(q, k)) / r, 0)^2 * fade(distance)",
    rule=Pointwise(weigh_key=weigh_key),
    prepare=(Prepare(),),
    finish=(tanh_norm,),
    cosine_scores=True,
    causal_only=True,
    window_scalar="effective_window",
    scalars=(WINDOW, ACCEPTANCE, EFFECTIVE_WINDOW),
    holds=frozenset(
        {
            Promise.NONNEGATIVE,
            Promise.BOUNDED,
            Promise.EXACT_ZERO,
            Promise.ABSOLUTE,
            Promise.REFUSED_INERT,
            Promise.REFUSES_EXACTLY,
            Promise.REFUSES_IN_LIMIT,
            Promise.SCALE_INVARIANT,
            Promise.CAUSAL,
            Promise.SINGLE_PASS,
            Promise.BLOCKS_SKIPPABLE,
        }
    ),
    notes={
        Promise.CONVEX_HULL: "instead, the length of the output is below one, up to rounding, for any values",
        Promise.SCALE_INVARIANT: "rescaling the values changes nothing either",
    },
)
