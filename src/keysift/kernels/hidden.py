"""A position that takes no part may hold anything, NaN and infinity included: it reaches no output and no gradient.

Setting weights to zero is not enough, because 0 x NaN is NaN: in weights @ v, and in every product of a backward pass.
So before any backend runs, numbers that are not finite are set to zero, and afterwards the rows that do see one become
NaN, as they would have been. One place for all backends; pairs of positions (scores, biases) are theirs to mask.

Letters: B batch, H heads, G key heads, T queries, S keys.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from keysift.kernels.call import Call, may_look
from keysift.mechanisms.spec import Per

BLOCK = 256  # queries looked at together: no T x S tensor is formed


def hide(call: Call) -> tuple[Call, Tensor | None]:
    """The call without non-finite numbers, and which rows (B H T) see one; None if there is nothing to hide."""
    if _everything_is_seen(call):
        return call, None
    lost_BHT, lost_BHS = _lost_queries(call), _lost_keys(call)
    # Where nobody may look, everything is hidden unasked.
    if may_look() and not bool(lost_BHT.any()) and not bool(lost_BHS.any()):
        return call, None
    clean = replace(
        call,
        q=_finite(call.q),
        k=_finite(call.k),
        v=_finite(call.v),
        scalars={
            name: _finite(value) if call.mechanism.scalar(name).per.projected else value
            for name, value in call.scalars.items()
        },
    )
    return clean, _rows(call, lost_BHT, lost_BHS)


def mark(rows_BHT: Tensor, out: Tensor) -> Tensor:
    return torch.where(rows_BHT[..., None], math.nan, out)


def mark_weights(call: Call, rows_BHT: Tensor, weights: Tensor) -> Tensor:
    return torch.where(rows_BHT[..., None] & call.visible().keep_BHTS, math.nan, weights)


def _everything_is_seen(call: Call) -> bool:
    """Known without looking at numbers: no mask, and the first query stands on the last key or after it."""
    if call.keep is not None or call.mechanism.band is not None:
        return False
    if not call.positions.consecutive:
        return False
    return not call.causal or call.positions.offset >= call.k.shape[2] - 1


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)


def _lost(x: Tensor) -> Tensor:
    """Whether any channel is not finite: a maximum keeps NaN and infinity, and takes a twentieth of a norm's time."""
    return ~x.detach().abs().amax(-1).isfinite()


def _lost_queries(call: Call) -> Tensor:
    b, _, t, _ = call.q.shape
    lost = _lost(call.q).view(b, call.heads, -1, t).any(2)
    for name in _scalars(call, Per.QUERY, Per.QUERY_CHANNEL):
        lost = lost | _lost(call.scalars[name])
    return lost


def _lost_keys(call: Call) -> Tensor:
    b, groups, s, _ = call.v.shape
    lost = _lost(call.k).view(b, groups, -1, s).any(2) | _lost(call.v)
    for name in _scalars(call, Per.KEY, Per.KEY_CHANNEL):
        lost = lost | _lost(call.scalars[name])
    return lost.repeat_interleave(call.heads // groups, dim=1)


def _scalars(call: Call, *per: Per) -> list[str]:
    return [scalar.name for scalar in call.mechanism.scalars if scalar.per in per]


def _rows(call: Call, lost_BHT: Tensor, lost_BHS: Tensor) -> Tensor:
    """Rows that see a lost key, or are lost themselves and see any. A key beyond the band is not seen."""
    found = []
    for start in range(0, lost_BHT.shape[2], BLOCK):
        queries = slice(start, start + BLOCK)
        visible = call.visible(queries)
        keep = visible.keep_BHTS
        if call.mechanism.band is not None:
            keep = keep & (visible.distance_BHTS < call.scalars[call.mechanism.band].detach())
        found.append((keep & (lost_BHT[:, :, queries, None] | lost_BHS[:, :, None])).any(-1))
    return torch.cat(found, dim=2)
