"""The softmax family on torch's fused attention: no T x S tensor, forward or backward.

    w = gain (softmax(factor x, with a sink) - share softmax(factor y) - level)

    factor   multiplies queries
    sink     o <- o exp(L - L'), L' = log(exp(L) + exp(s)), L the log of the softmax's denominator
    share    both maps run as heads of one call, and their outputs are subtracted
    level    times the sum of the visible values

On the CPU by torch's own operator, which gives L too: parts of a row (a cache and the new tokens) are joined by L, and
the backward pass runs part by part with the L of the whole: exp(x - L) is then each part's true weight. Elsewhere by
`torch.nn.functional.scaled_dot_product_attention`, with masks where parts would have to be joined, and without sinks.

Letters: B batch, H heads, M maps, T queries, S keys, K key width, V value width.
"""

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.kernels import compiled, dense, parts
from keysift.kernels.call import Call, has_tangents, part, transformed
from keysift.mechanisms.rules import Softmax, counted

# Not part of torch's public interface, so a version may lack them.
_forward_op = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_backward_op = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None)


def declines(call: Call, return_weights: bool) -> str | None:
    if not isinstance(call.mechanism.rule, Softmax):
        return f"it computes softmaxes, and {call.mechanism.name} is none"
    if return_weights:
        return "it never forms the weights"
    if call.q.device.type == "meta":
        return "the tensors are on meta"
    if call.mechanism.rule.sink is not None and not _gives_log(call):
        return "a sink needs the logarithm of the denominator, which only torch's operator for the CPU gives"
    if call.bias is not None and call.bias.requires_grad and torch.is_grad_enabled():
        return "torch's kernel has no gradient for a bias"
    if call.bias is not None and call.mechanism.rule.factor is not None:
        return f"{call.mechanism.name} multiplies the bias too, and torch's kernel has no gradient for a bias"
    if transformed():
        return "torch's kernel cannot be transformed by torch.func"
    if has_tangents(call):
        return "it has no forward-mode derivative"
    return None


def _gives_log(call: Call) -> bool:
    return call.q.device.type == "cpu" and _forward_op is not None and _backward_op is not None


def run(call: Call) -> tuple[Tensor, None]:
    rule = call.mechanism.rule
    assert isinstance(rule, Softmax), "declined"
    q, k, v, scalars = dense.prepare(call)
    apply = dense.applying(call.mechanism, scalars)
    maps = rule.maps
    seen = counted(parts.seen(call), q) if rule.factor is not None or rule.level is not None else None
    if rule.factor is not None:
        assert seen is not None
        q = q * dense.repeated(apply(rule.factor, seen).expand(-1, call.heads, -1, -1), maps)
    sink = None if rule.sink is None else _sinks(apply(rule.sink), call.heads, maps, q)
    both = _softmax(call, q, k, dense.repeated(v, maps), sink)
    out, *second = both.unflatten(1, (call.heads, maps)).unbind(2)  # type: ignore[no-untyped-call]
    if rule.share is not None:
        out = out - apply(rule.share) * second[0]
    if rule.level is not None:
        assert seen is not None
        out = out - apply(rule.level, seen) * parts.sums(call, v)
    if rule.gain is not None:
        out = apply(rule.gain) * out
    return dense.finish(call.mechanism, out, scalars).to(call.v.dtype), None


def _sinks(sink: Tensor, heads: int, maps: int, like: Tensor) -> Tensor:
    """One logit for each head of the call; only first maps have a sink."""
    first = sink.to(like.dtype).reshape(-1).expand(heads)
    none = torch.full((heads, maps - 1), -math.inf, dtype=like.dtype, device=like.device)
    return torch.cat((first[:, None], none), dim=1).flatten()


def _softmax(call: Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Tensor:
    """softmax(x) v for every head of q, B (H M) T V."""
    width, values = q.shape[3], v.shape[3]
    if width != values:  # the kernel wants one width; zeros change neither scores nor the values asked for
        wide = max(width, values)
        q, k = (torch.nn.functional.pad(x, (0, wide - width)) for x in (q, k))
        v = torch.nn.functional.pad(v, (0, wide - values))
    if not _gives_log(call):
        return _public(call, q, k, v)[..., :values]
    if parts.cut(call) is None:
        return _in_blocks(call, q, k, v, sink)[..., :values]
    pieces = call.positions.pieces
    offset = call.positions.offset if pieces is None else 0
    return _attention(Inputs(q, k, v, sink, pieces, None, offset, call.causal, call.scale))[..., :values]


def _public(call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    only = parts.whole(parts.cut(call), q.shape[2], k.shape[2])
    if only is not None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=only.causal, scale=call.scale)
    done = []
    for queries, keys in parts.blocks(call):
        mask = _mask(call, queries, keys, q)
        seeing = (mask > -math.inf).any(-1, keepdim=True)  # a row without any key would be NaN
        out = F.scaled_dot_product_attention(
            *(q[:, :, queries], k[:, :, keys], v[:, :, keys]), torch.where(seeing, mask, 0.0), scale=call.scale
        )
        done.append(torch.where(seeing, out, 0.0))
    return torch.cat(done, dim=2)


def _in_blocks(call: Call, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> Tensor:
    """Blocks of queries, each with its mask. What nobody sees is set to zero, because the kernel multiplies it too."""
    seeing, seen = (dense.repeated(x, call.mechanism.maps) if x.shape[1] > 1 else x for x in parts.taking_part(call))
    q = torch.where(seeing, q, 0.0)
    k, v = torch.where(seen, k, 0.0), torch.where(seen, v, 0.0)
    done = []
    for queries, keys in parts.blocks(call):
        mask = _mask(call, queries, keys, q)
        inputs = (q[:, :, queries], k[:, :, keys], v[:, :, keys])
        done.append(_attention(Inputs(*inputs, sink, None, mask, 0, False, call.scale)))
    return torch.cat(done, dim=2)


def _mask(call: Call, queries: slice, keys: slice, like: Tensor) -> Tensor:
    """0 or the bias where seen, minus infinity elsewhere; for every map of a head."""
    keep = call.visible(queries, keys).keep_BHTS
    bias: Tensor | float = 0.0 if call.bias is None else part(call.bias, queries, keys).to(like.dtype)
    mask = torch.where(keep, bias, -math.inf).to(like.dtype)
    if mask.shape[1] > 1:
        mask = dense.repeated(mask, call.mechanism.maps)
    return mask.expand(-1, -1, queries.stop - queries.start, -1)


class Inputs(NamedTuple):
    """What both operators read, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None
    pieces: Tensor | None  # N 6, or each row is one piece, of this offset
    mask: Tensor | None  # added to the scores; then there is one part
    offset: int
    causal: bool
    scale: float


_INPUTS = compiled.schema(Inputs)


def _attention(x: Inputs) -> Tensor:
    learning = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x.q, x.k, x.v, x.sink))
    if learning or torch.compiler.is_compiling():
        out: Tensor = _softmax_attention(*x)[0]
        return out
    return _forward(x)[0]


def _forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """The output, and L: plus infinity where nothing is seen, so that exp(x - L) is 0."""
    q = x.q
    found = parts.parts(x.pieces, x.offset, x.causal, q.shape[2], x.k.shape[2])
    only = parts.whole(found, q.shape[2], x.k.shape[2])
    if only is not None:
        out, log = _forward_part(x, only)
    else:
        out, log = q.new_zeros(*q.shape[:3], x.v.shape[3]), q.new_full(q.shape[:3], -math.inf)
        for piece in found:
            where = (piece.rows, slice(None), piece.queries)
            one, its = _forward_part(x, piece)
            both = torch.logaddexp(log[where], its)
            out[where] = out[where] * (log[where] - both).exp()[..., None] + one * (its - both).exp()[..., None]
            log[where] = both
    if x.mask is not None:
        log = torch.where((x.mask > -math.inf).any(-1), log, -math.inf)
    if x.sink is not None:
        with_sink = torch.logaddexp(log, x.sink[:, None])
        out = out * torch.where(log == -math.inf, 0.0, (log - with_sink).exp())[..., None]
        log = with_sink
    return out, torch.where(log == -math.inf, math.inf, log)


def _forward_part(x: Inputs, piece: parts.Part) -> tuple[Tensor, Tensor]:
    assert _forward_op is not None, "the public function runs instead"
    q, k, v = _of(x, piece)
    found: tuple[Tensor, Tensor] = _forward_op(q, k, v, 0.0, piece.causal, attn_mask=x.mask, scale=x.scale)
    return found


def _of(x: Inputs, piece: parts.Part) -> tuple[Tensor, Tensor, Tensor]:
    keys = (piece.rows, slice(None), piece.keys)
    return _side_by_side(x.q[piece.rows, :, piece.queries]), _side_by_side(x.k[keys]), _side_by_side(x.v[keys])


def _side_by_side(rows: Tensor) -> Tensor:
    """The kernel reads a row as if its entries lay side by side, whatever the strides say."""
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
    found = parts.parts(x.pieces, x.offset, x.causal, x.q.shape[2], x.k.shape[2])
    only = parts.whole(found, x.q.shape[2], x.k.shape[2])
    if only is not None:
        return _backward_part(x, only, dout, out, log)
    grads = tuple(t.new_zeros(t.shape) for t in (x.q, x.k, x.v))
    for piece in found:
        places = (piece.queries, piece.keys, piece.keys)
        for total, place, one in zip(grads, places, _backward_part(x, piece, dout, out, log), strict=True):
            total[piece.rows, :, place] += one
    return grads[0], grads[1], grads[2]


def _backward_part(
    x: Inputs, piece: parts.Part, dout: Tensor, out: Tensor, log: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    assert _backward_op is not None, "the public function runs instead"
    where = (piece.rows, slice(None), piece.queries)
    dq, dk, dv = _backward_op(
        dout[where], *_of(x, piece), out[where], log[where], 0.0, piece.causal, attn_mask=x.mask, scale=x.scale
    )
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@_softmax_backward.register_fake
def _(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    x = Inputs(*inputs)
    return x.q.new_empty(x.q.shape), x.k.new_empty(x.k.shape), x.v.new_empty(x.v.shape)


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, offset, causal, scale = inputs
    ctx.save_for_backward(*output, *tensors)  # type: ignore[arg-type]
    ctx.rest = (offset, causal, scale)  # type: ignore[attr-defined]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    out, log, *tensors = ctx.saved_tensors  # type: ignore[attr-defined]
    x = Inputs(*tensors, *ctx.rest)  # type: ignore[attr-defined]
    dq, dk, dv = _softmax_backward(dout.contiguous(), out, log, *x)
    dsink = None
    if x.sink is not None:
        # The sink's own weight, and its value of zero: d s = -p (dout . out), summed over rows.
        weight = (x.sink[:, None] - log).exp()
        dsink = -(weight * (dout * out).sum(-1)).sum((0, 2))
    return dq, dk, dv, dsink, None, None, None, None, None


_softmax_attention.register_autograd(_differentiate, setup_context=_keep)
