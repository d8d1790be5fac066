"""The sdpa backend: the softmax family on torch's fused attention; no T x S tensor, forward or backward.

    w = gain (softmax(factor x, with a sink) - share softmax(factor y) - level)

    factor   multiplies queries; its gradient at large scores: see softmax_operators.py
    sink     o <- o exp(L - L'), L' = log(exp(L) + exp(s)), L the log of the softmax's denominator; plus the value
             of the sink, if it has one, times exp(s - L')
    share    both maps run as heads of one call, and their outputs are subtracted
    level    times the sum of the visible values

On the CPU it calls torch's own operator, which also returns L (softmax_operators.py). On other devices it calls
`torch.nn.functional.scaled_dot_product_attention`, with masks instead of joined regions, and without sinks.

Letters: B batch, H heads, M maps, T queries, S keys, K key width, V value width.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.kernels import masked_values
from keysift.kernels.backend import Backend
from keysift.kernels.call import Call, has_tangents, slice_pairs
from keysift.kernels.eager import dense, forgetting
from keysift.kernels.eager import softmax_operators as operators
from keysift.kernels.eager.softmax_operators import Inputs
from keysift.kernels.regions import (
    any_visible,
    covering_region,
    query_blocks,
    regions_of,
    visible_counts,
    visible_value_sums,
    window_mask_of,
)
from keysift.kernels.scalars import accumulation_dtype
from keysift.kernels.transforms import can_inspect_values, in_function_transform
from keysift.mechanisms.rules import Apply, Softmax, visible_count


def declines(call: Call, return_weights: bool) -> str | None:
    if not isinstance(call.mechanism.rule, Softmax):
        return f"it computes softmax attention, and {call.mechanism.name} is not a softmax"
    if return_weights:
        return "it never forms the weights"
    if call.q.device.type == "meta":
        return "the tensors are on meta"
    if call.mechanism.rule.sink is not None and not _returns_log(call):
        return "a sink needs the logarithm of the denominator, which only torch's CPU operator returns"
    if call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled():
        return "torch's kernel has no gradient for a bias"
    if (call.bias is not None or call.slopes is not None) and call.mechanism.rule.factor is not None:
        return f"{call.mechanism.name} scales the bias too, and torch's kernel has no gradient for a bias"
    if call.mechanism.rule.forget is not None:
        reason = _declines_gates(call)
        if reason is not None:
            return reason
    if in_function_transform():
        return "torch.func cannot transform torch's kernel"
    if has_tangents(call):
        return "it has no forward-mode derivative"
    return None


def _declines_gates(call: Call) -> str | None:
    rule = call.mechanism.rule
    assert isinstance(rule, Softmax)
    if rule != Softmax(forget=rule.forget):
        return "forget gates are not combined with other parts of a softmax"
    if not _returns_log(call):
        return "forget gates need the logarithm of the denominator, which only torch's CPU operator returns"
    if call.kept or call.slopes is not None or regions_of(call) is None:
        return "forget gates need every key between a key and its query: no masks, biases, kept keys or slopes"
    return None


def _returns_log(call: Call) -> bool:
    return call.q.device.type == "cpu" and operators.available()


def detects_non_finite(call: Call) -> bool:
    """One query that sees every key gets a probe (softmax_operators.probed), cheaper than a check of all keys."""
    return (
        call.q.shape[2] == 1
        and not torch.is_grad_enabled()
        and can_inspect_values()
        and _returns_log(call)
        and call.slopes is None
        and not (isinstance(call.mechanism.rule, Softmax) and call.mechanism.rule.forget is not None)
        and covering_region(regions_of(call), 1, call.k.shape[2]) is not None
    )


def run(call: Call) -> tuple[Tensor, None]:
    if call.finite or not detects_non_finite(call):
        return _run(call), None
    projected = [call.scalars[scalar.name] for scalar in call.mechanism.scalars if scalar.per.projected]
    if masked_values.all_finite(call.q, *projected):
        try:
            return _run(call), None
        except operators.NonFiniteError:
            pass
    clean_call, nan_rows = masked_values.sanitize(call)
    out = _run(clean_call)
    return out if nan_rows is None else masked_values.restore_nan(nan_rows, out), None


_PLAIN = Softmax()


def _runs_unchanged(call: Call) -> bool:
    """Whether torch's public function computes the call as it stands: plain softmax, no gradient."""
    q, k, v = call.q, call.k, call.v
    if call.mechanism.rule != _PLAIN or call.mechanism.prepare or call.mechanism.finish or call.scale <= 0:
        return False
    if q.shape[1] != k.shape[1] or q.dtype != accumulation_dtype(q) or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return False
    return q.shape[3] <= v.shape[3]


def _run(call: Call) -> Tensor:
    rule = call.mechanism.rule
    assert isinstance(rule, Softmax), "declined"
    if _runs_unchanged(call):
        covering = covering_region(regions_of(call), call.q.shape[2], call.k.shape[2])
        finite = call.finite or not detects_non_finite(call)
        if finite and covering is not None and covering.band is None:
            q, k, v = (operators.contiguous_rows(x) for x in (call.q, call.k, call.v))
            if q.shape[3] < v.shape[3]:  # the kernel needs equal widths; zero channels change no score
                q, k = (F.pad(x, (0, v.shape[3] - x.shape[3])) for x in (q, k))
            return F.scaled_dot_product_attention(q, k, v, is_causal=covering.causal, scale=call.scale)
    q, k, v, scalars = dense.prepare(call, adds_rest=True)
    apply = dense.with_scalars(call.mechanism, scalars)
    if rule.forget is not None:
        out = _softmax_with_gates(call, q, k, v, apply(rule.forget))
        return dense.finish(call, out, scalars, adds_rest=True).to(call.v.dtype)
    maps = rule.maps
    factor = None
    if rule.factor is not None:
        visible = visible_count(visible_counts(call), q)
        factor = dense.repeat_heads(apply(rule.factor, visible).expand(-1, call.heads, -1, -1), maps)
        factor = factor.to(q.dtype).expand(*q.shape[:3], 1)
    sink = None if rule.sink is None else _sinks(apply(rule.sink), call.heads, maps, q)
    rest = None if call.mechanism.rest_value is None else scalars[call.mechanism.rest_value]
    out = weighted_difference(call, _softmax(call, q, k, dense.repeat_heads(v, maps), sink, rest, factor), v, apply)
    return dense.finish(call, out, scalars, adds_rest=True).to(call.v.dtype)


def weighted_difference(call: Call, out_BHTV: Tensor, v: Tensor, apply: Apply) -> Tensor:
    """gain (softmax(x) v - share softmax(y) v - level sum v), B H T V, from the products of each map, B (H M) T V."""
    rule = call.mechanism.rule
    assert isinstance(rule, Softmax), "declined"
    out = out_BHTV
    if rule.maps > 1:
        out, *second = out.unflatten(1, (call.heads, rule.maps)).unbind(2)  # type: ignore[no-untyped-call]
        if rule.share is not None:
            out = out - apply(rule.share) * second[0]
    if rule.level is not None:
        visible = visible_count(visible_counts(call), v)
        out = out - apply(rule.level, visible) * visible_value_sums(call, v)
    return out if rule.gain is None else apply(rule.gain) * out


def _softmax_with_gates(call: Call, q: Tensor, k: Tensor, v: Tensor, log_gates_BHS1: Tensor) -> Tensor:
    """Softmax attention whose scores fall by the gates of newer keys."""
    scale, (width, values) = call.scale, (q.shape[3], v.shape[3])
    if scale <= 0:
        q, scale = scale * q, 1.0
    wide = max(width, values)
    q, k, v = (F.pad(x, (0, wide - x.shape[3])) for x in (q, k, v))
    segments, offset, _, window, *_ = window_mask_of(call)
    decay = log_gates_BHS1[..., 0].double().cumsum(-1)
    return forgetting.attention(forgetting.Inputs(q, k, v, decay, segments, offset, window, scale))[..., :values]


def _sinks(sink: Tensor, heads: int, maps: int, like: Tensor) -> Tensor:
    """One logit per head of the operator, or per head and query, B (H M) T; only the first map has a sink."""
    sink = sink.to(like.dtype)
    shape = (like.shape[0], heads, like.shape[2], 1) if sink.ndim == 4 else (1, heads, 1, 1)
    first = sink.expand(shape)[..., 0]
    none = torch.full_like(first, -math.inf)
    return torch.stack((first, *[none] * (maps - 1)), dim=2).flatten(1, 2)


def _softmax(
    call: Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, rest: Tensor | None, factor: Tensor | None
) -> Tensor:
    """softmax(x) v for every head of q, B (H M) T V; `rest` is the value of the sink, H 1 V."""
    if call.scale <= 0:  # the causal kernel multiplies -inf by the scale, which gives +inf or NaN
        q, call = call.scale * q, replace(call, scale=1.0)
    width, values = q.shape[3], v.shape[3]
    if width != values:  # the kernel needs equal widths; zero channels change no score and are cut off the output
        wide = max(width, values)
        q, k = (torch.nn.functional.pad(x, (0, wide - width)) for x in (q, k))
        v = torch.nn.functional.pad(v, (0, wide - values))
        rest = None if rest is None else torch.nn.functional.pad(rest, (0, wide - values))
    if not _returns_log(call):
        return _public(call, q if factor is None else q * factor, k, v)[..., :values]
    if regions_of(call) is None:
        return _in_blocks(call, q, k, v, sink, rest, factor)[..., :values]
    segments, offset, causal, window, kept, _ = window_mask_of(call)
    slopes = None if call.slopes is None else dense.repeat_heads(call.slopes.to(q.dtype)[None], call.mechanism.maps)[0]
    inputs = Inputs(q, k, v, sink, rest, factor, segments, None, slopes, offset, causal, window, kept, call.scale)
    probed = not call.finite and detects_non_finite(call)
    return (operators.probed(inputs) if probed else operators.attention(inputs))[..., :values]


def _public(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention through torch's public function."""
    covering = covering_region(regions_of(call), q.shape[2], k.shape[2])
    if covering is not None and covering.band is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=covering.causal, scale=call.scale)
    blocks = []
    for queries, keys in query_blocks(call):
        mask = _mask(call, queries, keys, q)
        has_keys = (mask > -math.inf).any(-1, keepdim=True)  # a row with no visible keys would be NaN
        out = F.scaled_dot_product_attention(
            *(q[:, :, queries], k[:, :, keys], v[:, :, keys]), torch.where(has_keys, mask, 0.0), scale=call.scale
        )
        blocks.append(torch.where(has_keys, out, 0.0))
    return torch.cat(blocks, dim=2)


def _in_blocks(
    call: Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, rest: Tensor | None, factor: Tensor | None
) -> Tensor:
    """Softmax attention in blocks of queries with one mask each. Positions without any visible pair are set to zero,
    because the kernel multiplies them too."""
    maps = call.mechanism.maps
    seeing, seen = (dense.repeat_heads(x, maps) if x.shape[1] > 1 else x for x in any_visible(call))
    q = torch.where(seeing, q, 0.0)
    k, v = torch.where(seen, k, 0.0), torch.where(seen, v, 0.0)
    blocks = []
    for queries, keys in query_blocks(call):
        mask = _mask(call, queries, keys, q)
        inputs = (q[:, :, queries], k[:, :, keys], v[:, :, keys])
        factors = None if factor is None else factor[:, :, queries]
        sinks = sink[:, :, queries] if sink is not None and sink.shape[2] > 1 else sink
        block = Inputs(*inputs, sinks, rest, factors, None, mask, None, 0, False, 0, 0, call.scale)
        blocks.append(operators.attention(block))
    return torch.cat(blocks, dim=2)


def _mask(call: Call, queries: slice, keys: slice, like: Tensor) -> Tensor:
    """The bias (or 0) of visible pairs and -inf elsewhere, for every map of a head."""
    visible = call.visible(queries, keys)
    given = None if call.bias is None else slice_pairs(call.bias, queries, keys)
    bias = call.add_biases(like.new_zeros(()), visible, given)
    mask = torch.where(visible.keep_BHTS, bias, -math.inf).to(like.dtype)
    if mask.shape[1] > 1:
        mask = dense.repeat_heads(mask, call.mechanism.maps)
    return mask.expand(-1, -1, queries.stop - queries.start, -1)


BACKEND = Backend(
    name="sdpa",
    about="the softmax family on torch's fused attention kernel; memory grows with queries only",
    run=run,
    declines=declines,
    detects_non_finite=detects_non_finite,
)
