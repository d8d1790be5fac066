"""The sdpa backend: the softmax family on torch's fused attention; no T x S tensor, forward or backward.

    w = gain (softmax(factor x, with a sink) - share softmax(factor y) - level)

    factor   multiplies queries
    sink     o <- o exp(L - L'), L' = log(exp(L) + exp(s)), L the log of the softmax's denominator
    share    both maps run as heads of one call, and their outputs are subtracted
    level    times the sum of the visible values

On the CPU it calls torch's own operator, which also returns L. Regions of a row (a cache and the new tokens) are joined
through L. The backward pass runs region by region with the L of the whole row, so that exp(x - L) is the true weight.
On other devices it calls `torch.nn.functional.scaled_dot_product_attention`, with masks instead of joined regions, and
without sinks.

Letters: B batch, H heads, M maps, T queries, S keys, K key width, V value width.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.kernels import masked_values
from keysift.kernels.backend import Backend
from keysift.kernels.call import Call, has_tangents, slice_pairs
from keysift.kernels.eager import dense
from keysift.kernels.regions import (
    Band,
    Reach,
    Region,
    any_visible,
    covering_region,
    disjoint,
    query_blocks,
    reach_of,
    regions,
    regions_of,
    visible_counts,
    visible_value_sums,
)
from keysift.kernels.schema import schema
from keysift.kernels.transforms import can_inspect_values, in_function_transform, no_double_backward
from keysift.mechanisms.rules import Softmax, visible_count

# Not part of torch's public API, so a version may lack them.
_forward_op = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_backward_op = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


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
    if call.bias is not None and call.mechanism.rule.factor is not None:
        return f"{call.mechanism.name} scales the bias too, and torch's kernel has no gradient for a bias"
    if in_function_transform():
        return "torch.func cannot transform torch's kernel"
    if has_tangents(call):
        return "it has no forward-mode derivative"
    return None


def _returns_log(call: Call) -> bool:
    return call.q.device.type == "cpu" and _forward_op is not None and _backward_op is not None


def detects_non_finite(call: Call) -> bool:
    """One query that sees every key gets a probe (see `_probed`), which is cheaper than a check of all keys."""
    return (
        call.q.shape[2] == 1
        and not torch.is_grad_enabled()
        and can_inspect_values()
        and _returns_log(call)
        and covering_region(regions_of(call), 1, call.k.shape[2]) is not None
    )


class _NonFiniteError(Exception):
    """A key or value is not finite."""


def run(call: Call) -> tuple[Tensor, None]:
    if call.finite or not detects_non_finite(call):
        return _run(call), None
    projected = [call.scalars[scalar.name] for scalar in call.mechanism.scalars if scalar.per.projected]
    if masked_values.all_finite(call.q, *projected):
        try:
            return _run(call), None
        except _NonFiniteError:
            pass
    clean_call, nan_rows = masked_values.sanitize(call)
    out = _run(clean_call)
    return out if nan_rows is None else masked_values.restore_nan(nan_rows, out), None


def _run(call: Call) -> Tensor:
    rule = call.mechanism.rule
    assert isinstance(rule, Softmax), "declined"
    q, k, v, scalars = dense.prepare(call)
    apply = dense.with_scalars(call.mechanism, scalars)
    maps = rule.maps
    visible = visible_count(visible_counts(call), q) if rule.factor is not None or rule.level is not None else None
    if rule.factor is not None:
        assert visible is not None
        q = q * dense.repeat_heads(apply(rule.factor, visible).expand(-1, call.heads, -1, -1), maps)
    sink = None if rule.sink is None else _sinks(apply(rule.sink), call.heads, maps, q)
    maps_out = _softmax(call, q, k, dense.repeat_heads(v, maps), sink)
    out, *second = maps_out.unflatten(1, (call.heads, maps)).unbind(2)  # type: ignore[no-untyped-call]
    if rule.share is not None:
        out = out - apply(rule.share) * second[0]
    if rule.level is not None:
        assert visible is not None
        out = out - apply(rule.level, visible) * visible_value_sums(call, v)
    if rule.gain is not None:
        out = apply(rule.gain) * out
    return dense.finish(call.mechanism, out, scalars).to(call.v.dtype)


def _sinks(sink: Tensor, heads: int, maps: int, like: Tensor) -> Tensor:
    """One logit per head of the operator; only the first map of a head has a sink."""
    first = sink.to(like.dtype).reshape(-1).expand(heads)
    none = torch.full((heads, maps - 1), -math.inf, dtype=like.dtype, device=like.device)
    return torch.cat((first[:, None], none), dim=1).flatten()


def _softmax(call: Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Tensor:
    """softmax(x) v for every head of q, B (H M) T V."""
    if call.scale <= 0:  # the causal kernel multiplies -inf by the scale, which gives +inf or NaN
        q, call = call.scale * q, replace(call, scale=1.0)
    width, values = q.shape[3], v.shape[3]
    if width != values:  # the kernel needs equal widths; zero channels change no score and are cut off the output
        wide = max(width, values)
        q, k = (torch.nn.functional.pad(x, (0, wide - width)) for x in (q, k))
        v = torch.nn.functional.pad(v, (0, wide - values))
    if not _returns_log(call):
        return _public(call, q, k, v)[..., :values]
    if regions_of(call) is None:
        return _in_blocks(call, q, k, v, sink)[..., :values]
    segments, offset, causal, window, kept = reach_of(call)
    inputs = Inputs(q, k, v, sink, segments, None, offset, causal, window, kept, call.scale)
    probed = not call.finite and detects_non_finite(call)
    return (_probed(inputs) if probed else _attention(inputs))[..., :values]


def _public(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention through torch's public function."""
    covering = covering_region(regions_of(call), q.shape[2], k.shape[2])
    if covering is not None:
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


def _in_blocks(call: Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Tensor:
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
        blocks.append(_attention(Inputs(*inputs, sink, None, mask, 0, False, 0, 0, call.scale)))
    return torch.cat(blocks, dim=2)


def _mask(call: Call, queries: slice, keys: slice, like: Tensor) -> Tensor:
    """The bias (or 0) of visible pairs and -inf elsewhere, for every map of a head."""
    keep = call.visible(queries, keys).keep_BHTS
    bias: Tensor | float = 0.0 if call.bias is None else slice_pairs(call.bias, queries, keys).to(like.dtype)
    mask = torch.where(keep, bias, -math.inf).to(like.dtype)
    if mask.shape[1] > 1:
        mask = dense.repeat_heads(mask, call.mechanism.maps)
    return mask.expand(-1, -1, queries.stop - queries.start, -1)


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None
    segments: Tensor | None  # the fields of Reach
    mask: Tensor | None  # added to the scores; the call is one region then
    offset: int
    causal: bool
    window: int
    kept: int
    scale: float

    @property
    def regions(self) -> list[Region]:
        reach = Reach(self.segments, self.offset, self.causal, self.window, self.kept)
        return regions(reach, self.q.shape[2], self.k.shape[2])


_INPUTS = schema(Inputs)


def _attention(x: Inputs) -> Tensor:
    needs_grad = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x.q, x.k, x.v, x.sink))
    if needs_grad or torch.compiler.is_compiling():
        out: Tensor = _softmax_attention(*x)[0]
        return out
    return _forward(x)[0]


def _probed(x: Inputs) -> Tensor:
    """The output of one query that sees every key. Raises _NonFiniteError if a key or value is not finite.

    A second query of zeros runs along: its scores are 0, or NaN for a key that is not finite. Its weights are 1 / S, so
    that the logarithm of its denominator is log S and its output is finite exactly if all keys and values are. The
    kernel is bound by reading keys and values, which it reads once for both.
    """
    assert _forward_op is not None, "only with the operator"
    q = torch.cat((x.q, torch.zeros_like(x.q)), dim=2)
    k, v = _contiguous_rows(x.k), _contiguous_rows(x.v)
    out, log = _forward_op(q, k, v, 0.0, False, scale=x.scale)
    # The kernel skips a block of keys whose scores are all NaN, so the logarithm may be finite but too small.
    error = (log[:, :, 1] - math.log(k.shape[2])).abs().amax() + out[:, :, 1].sum().abs() * 0
    if not error.item() < 1e-4:
        raise _NonFiniteError
    return _with_sink(out[:, :, :1], log[:, :, :1], x.sink)[0]


def _forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """The output, and L: +inf for rows with no visible keys, so that exp(x - L) is 0."""
    q = x.q
    all_regions, masks = x.regions, Masks(x)
    covering = covering_region(all_regions, q.shape[2], x.k.shape[2])
    if covering is not None:
        out, log = _forward_region(x, covering, masks)
    elif disjoint(all_regions):
        out, log = q.new_zeros(*q.shape[:3], x.v.shape[3]), q.new_full(q.shape[:3], -math.inf)
        for region in all_regions:
            where = (region.rows, slice(None), region.queries)
            out[where], log[where] = _forward_region(x, region, masks)
    else:
        out, log = q.new_zeros(*q.shape[:3], x.v.shape[3]), q.new_full(q.shape[:3], -math.inf)
        for region in all_regions:
            where = (region.rows, slice(None), region.queries)
            region_out, region_log = _forward_region(x, region, masks)
            joint = torch.logaddexp(log[where], region_log)
            out[where] *= (log[where] - joint).exp()[..., None]
            out[where] += region_out * (region_log - joint).exp()[..., None]
            log[where] = joint
    if x.mask is not None:
        log = torch.where((x.mask > -math.inf).any(-1), log, -math.inf)
    out, log = _with_sink(out, log, x.sink)
    return out, torch.where(log == -math.inf, math.inf, log)


def _with_sink(out: Tensor, log: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output and the logarithm of the denominator after adding a sink to it."""
    if sink is None:
        return out, log
    joint = torch.logaddexp(log, sink[:, None])
    return out * torch.where(log == -math.inf, 0.0, (log - joint).exp())[..., None], joint


class Masks:
    """The mask of each region. The bands of a window are equal but for its first and last block, and share a mask."""

    def __init__(self, x: Inputs) -> None:
        self.given, self.like = x.mask, x.q
        self.of_bands: dict[tuple[Band, tuple[int, int]], Tensor] = {}

    def of(self, region: Region) -> Tensor | None:
        if region.band is None:
            return self.given
        key = (region.band, region.shape)
        if key not in self.of_bands:
            keep = region.band.visible(region.shape, self.like.device)
            self.of_bands[key] = self.like.new_zeros(()).where(keep, -math.inf)[None, None]
        return self.of_bands[key]


def _forward_region(x: Inputs, region: Region, masks: Masks) -> tuple[Tensor, Tensor]:
    assert _forward_op is not None, "the public function runs instead"
    q, k, v = _slice_region(x, region)
    result: tuple[Tensor, Tensor] = _forward_op(q, k, v, 0.0, region.causal, attn_mask=masks.of(region), scale=x.scale)
    return result


def _slice_region(x: Inputs, region: Region) -> tuple[Tensor, Tensor, Tensor]:
    keys = (region.rows, slice(None), region.keys)
    return (
        _contiguous_rows(x.q[region.rows, :, region.queries]),
        _contiguous_rows(x.k[keys]),
        _contiguous_rows(x.v[keys]),
    )


def _contiguous_rows(rows: Tensor) -> Tensor:
    """The kernel assumes that the last axis is contiguous and ignores its stride."""
    return rows if rows.stride(-1) == 1 else rows.contiguous()


@torch.library.custom_op("keysift::softmax", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor)")
def _softmax_attention(*inputs: Any) -> tuple[Tensor, Tensor]:
    out, log = _forward(Inputs(*inputs))
    return out.contiguous(), log.contiguous()


@_softmax_attention.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    x = Inputs(*inputs)
    return x.q.new_empty(*x.q.shape[:3], x.v.shape[3]), x.q.new_empty(x.q.shape[:3])


@torch.library.custom_op(
    "keysift::softmax_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor out, Tensor log, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
)
def _softmax_backward(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = Inputs(*inputs)
    all_regions, masks = x.regions, Masks(x)
    covering = covering_region(all_regions, x.q.shape[2], x.k.shape[2])
    if covering is not None:
        return _backward_region(x, covering, masks, dout, out, log)
    grads = tuple(t.new_zeros(t.shape) for t in (x.q, x.k, x.v))
    for region in all_regions:
        slices = (region.queries, region.keys, region.keys)
        for total, part, added in zip(grads, slices, _backward_region(x, region, masks, dout, out, log), strict=True):
            total[region.rows, :, part] += added
    return grads[0], grads[1], grads[2]


def _backward_region(
    x: Inputs, region: Region, masks: Masks, dout: Tensor, out: Tensor, log: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    assert _backward_op is not None, "the public function runs instead"
    where = (region.rows, slice(None), region.queries)
    dq, dk, dv = _backward_op(
        *(dout[where], *_slice_region(x, region), out[where], log[where], 0.0, region.causal),
        attn_mask=masks.of(region),
        scale=x.scale,
    )
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@_softmax_backward.register_fake
def _(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = Inputs(*inputs)
    return x.q.new_empty(x.q.shape), x.k.new_empty(x.k.shape), x.v.new_empty(x.v.shape)


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.constants = inputs[:6], inputs[6:]  # type: ignore[attr-defined]
    ctx.save_for_backward(*output, *tensors)  # type: ignore[arg-type]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    out, log, *tensors = ctx.saved_tensors  # type: ignore[attr-defined]
    x = Inputs(*tensors, *ctx.constants)  # type: ignore[attr-defined]
    dq, dk, dv = _softmax_backward(dout.contiguous(), out, log, *x)
    dsink = None
    if x.sink is not None:
        # The sink has weight p and value zero: ds = -p (dout . out), summed over rows.
        weight = (x.sink[:, None] - log).exp()
        dsink = -(weight * (dout * out).sum(-1)).sum((0, 2))
    return dq, dk, dv, dsink, *[None] * (len(x) - 4)


_softmax_attention.register_autograd(_differentiate, setup_context=_save)
_softmax_backward.register_autograd(no_double_backward)

BACKEND = Backend(
    name="sdpa",
    about="the softmax family on torch's fused attention kernel; memory grows with queries only",
    run=run,
    declines=declines,
    detects_non_finite=detects_non_finite,
)
