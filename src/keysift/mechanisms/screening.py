"""Screening: relevance judged one key at a time (Nakanishi, arXiv:2604.01178v3, equations 4 to 14).

    q, k, v on the unit sphere; coordinates (0, 1) of q and k turned by phi(i) = pi i gamma(w) / w
    gamma(w) = (1 + cos(pi w / 256)) / 2   for w < 256, else 0
    a_ts = max(1 - (1 - q_t . k_s) / r, 0)^2 * fade(t - s)
    fade(d) = (1 + cos(pi d / w)) / 2      for 0 <= d < w, else 0
    u_t  = tanh(|h_t|) / |h_t| * h_t,  h_t = sum_s a_ts v_s

w > 0 is the tile's window (infinite allowed), r in (0, 1] its acceptance width. `reach` is the window `fade` uses: w
itself, or infinity under window expansion at inference, where the rotation keeps the learned w.

Letters: B batch, H tiles, T queries, S keys, K key width, V value width.
"""

import math

import torch
from torch import Tensor

from keysift.core.errors import ShapeError
from keysift.mechanisms import parts
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Per, Promise, Scalar, Site

WINDOW_THRESHOLD = 256.0


def _windows(site: Site, generator: torch.Generator | None) -> Tensor:
    """s_w spaced from 0 to log 256 over the tiles: windows 2 to 257; one tile alone gets 2."""
    return torch.linspace(0.0, math.log(WINDOW_THRESHOLD) if site.heads > 1 else 0.0, site.heads, dtype=torch.float64)


def _wider_than_one(raw: Tensor, site: Site) -> Tensor:
    return raw.exp() + 1


WINDOW = Scalar(
    name="window",
    meaning="how many positions back the tile looks",
    per=Per.HEAD,
    init=_windows,
    link=_wider_than_one,
    above=0.0,
    probes=(0.7, 2.0, 9.5, math.inf),
)
# sigmoid(s_r) is 0.0 in fp32 from s_r = -104 on. This is far below what fp32 tells apart near a cosine of 1.
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
REACH = Scalar(
    name="reach",
    meaning="the window the fade uses: the learned window, or infinity under window expansion",
    per=Per.HEAD,
    above=0.0,
    learned=False,
    follows="window",
    probes=(2.0, 9.5, math.inf),
)


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """Rotate coordinates (0, 1) of x by `turns` full turns; the other coordinates stay.

    `turns` comes in fp64 and is reduced to one turn before it becomes an angle: at position 131,071 an fp32 angle
    would be wrong by whole degrees.
    """
    if x.shape[-1] < 2:
        raise ShapeError(f"screening rotates two channels of every key, so keys have at least 2, got {x.shape[-1]}")
    angle = (2 * math.pi * (turns - turns.detach().floor())).to(x.dtype)
    cos, sin = angle.cos(), angle.sin()
    x0, x1 = x[..., 0], x[..., 1]
    turned = torch.stack((x0 * cos - x1 * sin, x0 * sin + x1 * cos), dim=-1)
    return torch.cat((turned, x[..., 2:]), dim=-1)


def mipe_rate(window: Tensor) -> Tensor:
    """Turns per position of the minimal positional encoding: gamma(w) / (2 w), and none from the threshold on."""
    below = window < WINDOW_THRESHOLD
    w = torch.where(below, window, WINDOW_THRESHOLD)
    gamma = (torch.cos(math.pi * w / WINDOW_THRESHOLD) + 1) / 2
    return torch.where(below, gamma / (2 * w), 0.0)


def prepare(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, at: Tensor, key_at: Tensor, *, window: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rate = mipe_rate(window.double())
    q_BHTK = turn(parts.unit(q_BHTK), at * rate[..., 0])
    k_BHSK = turn(parts.unit(k_BHSK), key_at * rate[..., 0])
    return q_BHTK, k_BHSK, parts.unit(v_BHSV)


def prepare_unturned(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor, at: Tensor, key_at: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Without MiPE, for the paper's ablation and for other position encodings."""
    return parts.unit(q_BHTK), parts.unit(k_BHSK), parts.unit(v_BHSV)


def trim(cosine: Tensor, acceptance: Tensor | float) -> Tensor:
    """Exactly zero iff the cosine is at most 1 - r, one iff it is 1."""
    return torch.relu(1 - (1 - cosine) / acceptance).square()


def fade(distance: Tensor, window: Tensor) -> Tensor:
    """(1 + cos(pi d / w)) / 2 for 0 <= d < w, else 0; 1 at every d >= 0 when w is infinite.

    Whether a key is inside is decided on the integer distance.
    """
    inside = (distance >= 0) & (distance < window)
    # The quotient is taken only inside, so no gradient comes from d / w far outside.
    ratio = torch.where(inside, distance, 0) / window
    return torch.where(inside, (torch.cos(math.pi * ratio) + 1) / 2, 0.0)


def judge(x_BHTS: Tensor, distance_BHTS: Tensor, *, acceptance: Tensor, reach: Tensor) -> Tensor:
    return trim(x_BHTS, acceptance) * fade(distance_BHTS, reach)


def tanh_norm(h: Tensor) -> Tensor:
    """tanh(|h|)/|h| * h, and h itself where |h| is small."""
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
    rule=Pointwise(judge=judge),
    prepare=(prepare,),
    finish=(tanh_norm,),
    cosine_scores=True,
    looks_back_only=True,
    band="reach",
    scalars=(WINDOW, ACCEPTANCE, REACH),
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
        Promise.CONVEX_HULL: "the output instead has length below one, up to rounding, whatever the values",
        Promise.SCALE_INVARIANT: "rescaling the values changes nothing either",
    },
)
