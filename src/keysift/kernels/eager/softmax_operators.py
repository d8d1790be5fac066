"""Softmax attention on torch's CPU operator, as operators with gradients: `keysift::softmax` and its backward pass.

torch's operator returns L too, the log of the softmax's denominator. Regions of a row (a cache and the new tokens) are
joined through L. The backward pass runs region by region with the L of the whole row, so that exp(x - L) is the true
weight.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.kernels.regions import Region, WindowMask, covering_region, disjoint, regions
from keysift.kernels.schema import schema
from keysift.kernels.transforms import no_double_backward, through_operator

# Not part of torch's public API, so a version may lack them.
_forward_op = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_backward_op = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)

_LARGE = 32.0  # scores above this need the centred gradient of the factor
_EXTRA = 8  # channels added for it; the kernel is faster with 8 than with 1


def available() -> bool:
    """Whether this torch has the operator and its backward pass."""
    return _forward_op is not None and _backward_op is not None


class NonFiniteError(Exception):
    """A key or value is not finite."""


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None  # B H T, or 1 in place of B and T
    rest: Tensor | None  # H 1 V, the value of the sink
    factor: Tensor | None  # B H T 1, multiplies the queries
    segments: Tensor | None  # the fields of WindowMask
    mask: Tensor | None  # added to the scores; the call is one region then
    slopes: Tensor | None  # of the heads; every region is a band then
    offset: int
    causal: bool
    window: int
    kept: int
    scale: float

    @property
    def regions(self) -> list[Region]:
        by_distance = self.slopes is not None
        mask = WindowMask(self.segments, self.offset, self.causal, self.window, self.kept, by_distance)
        return regions(mask, self.q.shape[2], self.k.shape[2])


_INPUTS = schema(Inputs)


def attention(x: Inputs) -> Tensor:
    if through_operator(x):
        out: Tensor = _softmax_attention(*x)[0]
        return out
    return _forward(x)[0]


def probed(x: Inputs) -> Tensor:
    """The output of one query that sees every key. Raises NonFiniteError if a key or value is not finite.

    A second query of zeros runs along: its scores are 0, or NaN for a key that is not finite. Its weights are 1 / S, so
    that the logarithm of its denominator is log S and its output is finite exactly if all keys and values are. The
    kernel is bound by reading keys and values, which it reads once for both.
    """
    assert _forward_op is not None, "only with the operator"
    q = _scaled_queries(x)
    q = torch.cat((q, torch.zeros_like(q)), dim=2)
    k, v = contiguous_rows(x.k), contiguous_rows(x.v)
    out, log = _forward_op(q, k, v, 0.0, False, scale=x.scale)
    # The kernel skips a block of keys whose scores are all NaN, so the logarithm may be finite but too small.
    error = (log[:, :, 1] - math.log(k.shape[2])).abs().amax() + out[:, :, 1].sum().abs() * 0
    if not error.item() < 1e-4:
        raise NonFiniteError
    return _with_sink(out[:, :, :1], log[:, :, :1], x.sink, x.rest)[0]


def _forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """The output, and L: +inf for rows with no visible keys, so that exp(x - L) is 0."""
    q = _scaled_queries(x)
    x = x._replace(q=q)
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
    out, log = _with_sink(out, log, x.sink, x.rest)
    return out, torch.where(log == -math.inf, math.inf, log)


def _scaled_queries(x: Inputs) -> Tensor:
    return x.q if x.factor is None else x.q * x.factor


def _with_sink(out: Tensor, log: Tensor, sink: Tensor | None, rest: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output and the logarithm of the denominator after adding a sink to it."""
    if sink is None:
        return out, log
    joint = torch.where(log == -math.inf, math.inf, torch.logaddexp(log, sink))  # inf: no weight without visible keys
    out = out * (log - joint).exp()[..., None]
    return out if rest is None else out + (sink - joint).exp()[..., None] * rest, joint


class Masks:
    """The masks of bands, as slices of one tensor: a mask depends on the distance alone, the bias of a slope too."""

    def __init__(self, x: Inputs) -> None:
        self.given = x.mask
        bands = [(region.band, region.shape) for region in x.regions if region.band is not None]
        if not bands:
            return
        queries = max(shape[0] for _, shape in bands)
        self.shift = max(band.shift for band, _ in bands)
        # Column c of row i is at distance i + shift - c, so that a band of a smaller shift begins further right. Every
        # row is the next one moved by a column: a sliding view of one vector, last row first.
        widest = max(self.shift - band.shift + shape[1] for band, shape in bands)
        distance_X = self.shift + queries - 1 - torch.arange(widest + queries - 1, device=x.q.device)
        keep_X = (distance_X >= 0) & (distance_X < bands[0][0].window)
        bias_HX = x.q.new_zeros(1, 1) if x.slopes is None else -x.slopes[:, None] * distance_X
        # flip keeps the layout of its input, which must be that of rows for the kernel.
        rows_HTS = torch.where(keep_X, bias_HX, -math.inf).unfold(1, widest, 1).contiguous()
        self.of_bands = rows_HTS.flip(1)[None]

    def of(self, region: Region) -> Tensor | None:
        if region.band is None:
            return self.given
        first = self.shift - region.band.shift
        return self.of_bands[:, :, : region.shape[0], first : first + region.shape[1]]


def forward_op(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """torch's operator: the output and the logarithm of the denominator."""
    assert _forward_op is not None, "the public function runs instead"
    result: tuple[Tensor, Tensor] = _forward_op(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return result


def backward_op(*tensors: Tensor, causal: bool, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, given dout, q, k, v, out and the logarithm of the denominator."""
    assert _backward_op is not None, "the public function runs instead"
    result: tuple[Tensor, Tensor, Tensor] = _backward_op(*tensors, 0.0, causal, attn_mask=mask, scale=scale)
    return result


def _forward_region(x: Inputs, region: Region, masks: Masks) -> tuple[Tensor, Tensor]:
    return forward_op(*_slice_region(x, region), causal=region.causal, mask=masks.of(region), scale=x.scale)


def _slice_region(x: Inputs, region: Region) -> tuple[Tensor, Tensor, Tensor]:
    keys = (region.rows, slice(None), region.keys)
    return (
        contiguous_rows(x.q[region.rows, :, region.queries]),
        contiguous_rows(x.k[keys]),
        contiguous_rows(x.v[keys]),
    )


def contiguous_rows(rows: Tensor) -> Tensor:
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
    schema=f"(Tensor dout, Tensor out, Tensor log, bool factor_grad, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _softmax_backward(
    dout: Tensor, out: Tensor, log: Tensor, factor_grad: bool, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and, if asked for, of the factor (otherwise empty)."""
    x = Inputs(*inputs)
    if x.factor is None:
        return *_backward(x, dout, out, log), x.q.new_empty(0)
    scaled = x._replace(q=_scaled_queries(x))
    if factor_grad and x.sink is None and _largest_score(scaled) > _LARGE:
        dq, dk, dv, dfactor = _backward_centred(x, scaled, dout, out, log)
    else:
        dq, dk, dv = _backward(scaled, dout, out, log)
        dfactor = (x.q * dq).sum(-1, keepdim=True) if factor_grad else x.q.new_empty(0)
    return dq * x.factor, dk, dv, dfactor


def _largest_score(x: Inputs) -> float:
    """A bound on the scores: the longest query times the longest key."""
    query, key = (float(rows.norm(dim=-1).amax()) for rows in (x.q, x.k))
    return abs(x.scale) * query * key


def _backward_centred(
    x: Inputs, scaled: Inputs, dout: Tensor, out: Tensor, log: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of factor q, k, v and the factor, for large scores.

    The gradient of the factor is sum_j dz_j s_j, with scores s_j and dz_j the gradient of factor s_j. In the kernel,
    dz_j = w_j (dout . v_j - dout . out). The two products are rounded separately, so the dz_j of a row do not sum to
    zero but to an error, which this sum multiplies by the scores. Therefore the sum is taken of dz_j (s_j - c), where
    c = L / factor is near the scores of large weights. A channel of ones in k yields sum_j dz_j.
    """
    assert x.factor is not None, "only with a factor"
    width = x.q.shape[3]
    q, k, v, dout, out = (F.pad(t, (0, _EXTRA)) for t in (scaled.q, x.k, x.v, dout, out))
    k[..., width] = 1.0
    dq, dk, dv = _backward(scaled._replace(q=q, k=k, v=v), dout, out, log)
    excess, dq, dk, dv = dq[..., width, None], dq[..., :width], dk[..., :width], dv[..., :width]
    bound = x.q.norm(dim=-1, keepdim=True) * x.k.norm(dim=-1).amax(-1)[..., None, None]
    centre = (log[..., None] / (x.scale * x.factor)).nan_to_num(nan=0.0).clamp(-bound, bound)
    dfactor = (x.q * dq).sum(-1, keepdim=True) - centre * excess
    return dq, dk.contiguous(), dv.contiguous(), dfactor


def _backward(x: Inputs, dout: Tensor, out: Tensor, log: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
    where = (region.rows, slice(None), region.queries)
    dq, dk, dv = backward_op(
        *(dout[where], *_slice_region(x, region), out[where], log[where]),
        causal=region.causal,
        mask=masks.of(region),
        scale=x.scale,
    )
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@_softmax_backward.register_fake
def _(dout: Tensor, out: Tensor, log: Tensor, factor_grad: bool, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x = Inputs(*inputs)
    dfactor = x.q.new_empty((*x.q.shape[:3], 1) if factor_grad else (0,))
    return x.q.new_empty(x.q.shape), x.k.new_empty(x.k.shape), x.v.new_empty(x.v.shape), dfactor


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.constants = inputs[:9], inputs[9:]  # type: ignore[attr-defined]
    ctx.save_for_backward(*output, *tensors)  # type: ignore[arg-type]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    out, log, *tensors = ctx.saved_tensors  # type: ignore[attr-defined]
    x = Inputs(*tensors, *ctx.constants)  # type: ignore[attr-defined]
    factor_grad = x.factor is not None and ctx.needs_input_grad[5]  # type: ignore[attr-defined]
    dq, dk, dv, dfactor = _softmax_backward(dout.contiguous(), out, log, factor_grad, *x)
    dsink = drest = None
    if x.sink is not None:
        # A sink of weight p and value u: ds = p (dout . u - dout . out), summed over the rows that share it.
        weight = (x.sink - log).exp()
        towards_sink = -out if x.rest is None else x.rest - out
        dsink = (weight * (dout * towards_sink).sum(-1)).sum_to_size(x.sink.shape)
        drest = None if x.rest is None else (weight[..., None] * dout).sum_to_size(x.rest.shape)
    return dq, dk, dv, dsink, drest, dfactor if factor_grad else None, *[None] * (len(x) - 6)


_softmax_attention.register_autograd(_differentiate, setup_context=_save)
_softmax_backward.register_autograd(no_double_backward)
