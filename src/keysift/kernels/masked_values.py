"""One rule for NaN and inf on every backend: masked ones have no effect, and a row that sees one is NaN.

A row sees its own query and every visible key and value, whatever their weights. The inputs and the mask alone decide,
so backends cannot differ. A zero weight does not remove a NaN (0 * NaN is NaN, forward and backward), and a comparison
loses it (max(NaN, 0) may be 0). Before a backend runs, non-finite inputs are replaced by zero; afterwards, rows that
see one are set to NaN. This covers per-position inputs. Backends mask per-pair inputs (scores, bias) themselves.

Letters: B batch, H heads, G key heads, T queries, S keys.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from keysift.kernels.call import Call
from keysift.kernels.transforms import can_inspect_values
from keysift.mechanisms.spec import Per

BLOCK = 256  # queries processed together: no T x S tensor is formed


def all_finite(*tensors: Tensor) -> bool:
    """Whether all elements are known to be finite: False if their sum overflows or values cannot be inspected.

    NaN and inf make the sum non-finite. It reads each element once, in a tenth of the time of an element-wise test.
    """
    if not can_inspect_values():
        return False
    total = 0.0
    for tensor in tensors:
        total += (tensor.detach() if tensor.requires_grad else tensor).sum().item()
    return math.isfinite(total)


def sanitize(call: Call, *, keys_finite: bool = False) -> tuple[Call, Tensor | None]:
    """The call with non-finite inputs set to zero, and the rows (B H T) that see one; None if there are none.

    keys_finite  the caller knows that k, v and the scalars of the keys are finite; they are not read then
    """
    of_queries = [call.scalars[name] for name in _scalars_per(call, Per.QUERY, Per.QUERY_CHANNEL)]
    of_keys = [call.scalars[name] for name in _scalars_per(call, Per.KEY, Per.KEY_CHANNEL, Per.HEAD_KEY)]
    if all_finite(call.q, *of_queries, *(() if keys_finite else (call.k, call.v, *of_keys))):
        return call.known_finite(), None
    bad_BHT, bad_BHS = _non_finite_queries(call), _non_finite_keys(call)
    # Under torch.compile values cannot be inspected, so always sanitize.
    if can_inspect_values() and not bool(bad_BHT.any()) and not bool(bad_BHS.any()):
        return call.known_finite(), None
    clean_call = replace(
        call,
        finite=True,
        q=_zero_non_finite(call.q),
        k=_zero_non_finite(call.k),
        v=_zero_non_finite(call.v),
        scalars={
            name: _zero_non_finite(value) if call.mechanism.scalar(name).per.projected else value
            for name, value in call.scalars.items()
        },
    )
    return clean_call, _after_finish(clean_call, _nan_rows(call, bad_BHT, bad_BHS))


def restore_nan(nan_rows_BHT: Tensor, out: Tensor) -> Tensor:
    """The output with NaN in the rows that see a non-finite input."""
    return torch.where(nan_rows_BHT[..., None], math.nan, out)


def restore_nan_weights(call: Call, nan_rows_BHT: Tensor, weights: Tensor) -> Tensor:
    """The weights with NaN at the visible keys of these rows."""
    return torch.where(nan_rows_BHT[..., None] & call.visible().keep_BHTS, math.nan, weights)


def _all_keys_visible(call: Call) -> bool:
    """Whether every query sees every key, decided without reading values: no mask, and the first query is at the
    position of the last key or after it."""
    if call.keep is not None or call.window is not None or call.mechanism.window_scalar is not None:
        return False
    if not call.positions.consecutive:
        return False
    return not call.causal or call.mask_positions.offset >= call.k.shape[2] - 1


def _zero_non_finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, 0.0)


def _any_channel_non_finite(x: Tensor) -> Tensor:
    """A maximum propagates NaN and inf, and takes a twentieth of the time of a norm."""
    return ~x.detach().abs().amax(-1).isfinite()


def _non_finite_queries(call: Call) -> Tensor:
    b, _, t, _ = call.q.shape
    bad = _any_channel_non_finite(call.q).view(b, call.heads, -1, t).any(2)
    for name in _scalars_per(call, Per.QUERY, Per.QUERY_CHANNEL):
        bad = bad | _any_channel_non_finite(call.scalars[name])
    return bad


def _non_finite_keys(call: Call) -> Tensor:
    b, groups, s, _ = call.v.shape
    bad = _any_channel_non_finite(call.k).view(b, groups, -1, s).any(2) | _any_channel_non_finite(call.v)
    for name in _scalars_per(call, Per.KEY, Per.KEY_CHANNEL):
        bad = bad | _any_channel_non_finite(call.scalars[name])
    bad = bad.repeat_interleave(call.heads // groups, dim=1)
    for name in _scalars_per(call, Per.HEAD_KEY):
        bad = bad | _any_channel_non_finite(call.scalars[name])
    return bad


def _after_finish(call: Call, nan_rows_BHT: Tensor) -> Tensor:
    """The rows that are NaN after the mechanism's `finish` steps: a norm over all heads spreads NaN to all of them."""
    if not call.mechanism.finish:
        return nan_rows_BHT
    marks = torch.where(nan_rows_BHT, math.nan, 0.0)[..., None].expand(*nan_rows_BHT.shape, call.v.shape[3])
    for step in call.mechanism.finish:
        marks = step(marks, **{name: call.scalars[name] for name in call.mechanism.scalar_names[step]})
    return marks.isnan().any(-1)


def _scalars_per(call: Call, *per: Per) -> list[str]:
    return [scalar.name for scalar in call.mechanism.scalars if scalar.per in per]


def _nan_rows(call: Call, bad_BHT: Tensor, bad_BHS: Tensor) -> Tensor:
    """Rows that see a non-finite key, or are non-finite and see any key. Keys beyond the window are not visible."""
    if _all_keys_visible(call):
        return bad_BHT | bad_BHS.any(-1, keepdim=True)
    windowed = call.window is not None or call.mechanism.window_scalar is not None
    if call.keep is None and not windowed and call.positions.consecutive:
        return _nan_rows_of_causal(call, bad_BHT, bad_BHS)
    blocks = []
    length = bad_BHT.shape[2]
    # torch.export with a dynamic length cannot loop over it.
    symbolic = isinstance(length, torch.SymInt)
    for queries in (slice(0, length),) if symbolic else (slice(at, at + BLOCK) for at in range(0, length, BLOCK)):
        visible = call.visible(queries)
        keep = visible.keep_BHTS
        if call.mechanism.window_scalar is not None:
            keep = keep & (visible.distance_BHTS < call.scalars[call.mechanism.window_scalar].detach())
        blocks.append((keep & (bad_BHT[:, :, queries, None] | bad_BHS[:, :, None])).any(-1))
    return torch.cat(blocks, dim=2)


def _nan_rows_of_causal(call: Call, bad_BHT: Tensor, bad_BHS: Tensor) -> Tensor:
    """`_nan_rows` where a query sees the first keys up to its position. Has no loop, so that torch.export keeps the
    length symbolic."""
    keys = bad_BHS.shape[2]
    at_T = torch.arange(bad_BHT.shape[2], device=bad_BHT.device)
    count_T = (at_T + (call.mask_positions.offset + 1)).clamp(0, keys)
    bad_seen_BHT = torch.nn.functional.pad(bad_BHS.cumsum(-1), (1, 0))[:, :, count_T]
    return (count_T > 0) & (bad_BHT | (bad_seen_BHT > 0))
