"""One checked call: what `attend` was given, brought into the form every backend reads.

Letters: B batch, H heads, G key heads, M query maps of a head, N key maps, T queries, S keys, K, V widths.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor
from torch.autograd import forward_ad

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError, UnknownNameError, UnsupportedError
from keysift.core.registry import nearest
from keysift.kernels.positions import Positions
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Mechanism, Per, Site

Value = Tensor | float
Scalars = Mapping[str, Value]


class Aligned(dict[str, Tensor]):
    """Scalars that `align` has checked and shaped already: what does not change from call to call is looked at once."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """q is B (H M) T K, k is B (G N) S K, v is B G S V; scalars are aligned to broadcast against B H T S."""

    mechanism: Mechanism
    q: Tensor
    k: Tensor
    v: Tensor
    heads: int
    positions: Positions
    causal: bool
    keep: Tensor | None
    bias: Tensor | None
    scale: float
    scalars: Mapping[str, Tensor]

    @property
    def at(self) -> Tensor:
        """Positions of the queries, broadcastable to B H T."""
        return self.positions.of_queries(self.q.device)

    @property
    def key_at(self) -> Tensor:
        return self.positions.of_keys(self.q.device)

    def visible(self, queries: slice = slice(None), keys: slice = slice(None)) -> Visible:
        """Who sees whom in a part of the call; formed on demand, so that no backend must hold all of T x S."""
        distance = self.at[..., queries, None] - self.key_at[..., None, keys]
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        together = self.positions.same_document(queries, keys)
        if together is not None:
            seen = seen & together
        if self.keep is not None:
            seen = seen & part(self.keep, queries, keys)
        return Visible(seen, distance)


def part(tensor: Tensor, queries: slice, keys: slice) -> Tensor:
    """A part of something that broadcasts to ... T S; an axis of size 1 serves every part."""
    if tensor.ndim > 1 and tensor.shape[-2] > 1:
        tensor = tensor[..., queries, :]
    return tensor[..., keys] if tensor.ndim and tensor.shape[-1] > 1 else tensor


class Options(TypedDict, total=False):
    """What `attend` and `explain` take besides q, k and v; `attend` says what each one means."""

    keep: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float | None
    scalars: Scalars | None
    positions: Positions | None


def check(
    mechanism: Mechanism,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = True,
    scale: float | None = None,
    scalars: Scalars | None = None,
    positions: Positions | None = None,
) -> Call:
    _one_device(q.device, {"k": k, "v": v, "keep": keep, "bias": bias})
    _one_device(q.device, scalars or {})
    heads = _heads(mechanism, q, k, v)
    sizes = {"B": q.shape[0], "H": heads, "G": v.shape[1], "T": q.shape[2], "S": k.shape[2], "V": v.shape[3]}
    if mechanism.looks_back_only and not causal:
        raise UnsupportedError(
            f"{mechanism.name} is defined for keys at or before the query, so causal=False has no meaning for it; "
            f"leave causal=True"
        )
    positions = _positions(q, sizes, positions)
    if keep is not None:
        keep = _keep(keep, sizes)
    if bias is not None:
        bias, open_ = _bias(mechanism, bias, sizes)
        keep = open_ if keep is None else keep & open_
    site = Site(heads=heads, key_width=q.shape[3], value_width=v.shape[3])
    return Call(
        mechanism=mechanism,
        q=q,
        k=k,
        v=v,
        heads=heads,
        positions=positions,
        causal=causal,
        keep=keep,
        bias=bias,
        scale=_scale(mechanism, scale, q.shape[3]),
        scalars=scalars
        if isinstance(scalars, Aligned)
        else align(mechanism, scalars, site, sizes, carry=carrier(q), device=q.device),
    )


def carrier(x: Tensor) -> torch.dtype:
    """What statistics and sums are carried in: fp32, or fp64 where the caller works in it."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def transformed() -> bool:
    """Whether a function transform of torch.func (vmap, grad, jvp) is at work."""
    return not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None


def in_forward_mode() -> bool:
    """Whether tensors may carry forward-mode derivatives."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def has_tangents(call: Call) -> bool:
    """Whether an input carries a forward-mode derivative, which a compiled operator would drop."""
    if not in_forward_mode():
        return False
    tensors = (call.q, call.k, call.v, call.bias, *call.scalars.values())
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)  # type: ignore[no-untyped-call]


def may_look() -> bool:
    """Whether code may branch on numbers: a compiled graph and a function transform cannot."""
    return not torch.compiler.is_compiling() and not transformed()


def _one_device(device: torch.device, given: Mapping[str, Value | None]) -> None:
    for name, value in given.items():
        if isinstance(value, Tensor) and value.device != device:
            raise ShapeError(
                f"every tensor must be on one device, got q on {device} and {name} on {value.device}; "
                f"move {name} with .to({str(device)!r})"
            )


def _heads(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> int:
    for name, tensor, letters in (("q", q, "BHTK"), ("k", k, "BHSK"), ("v", v, "BHSV")):
        shapes.rank(name, tensor, letters)
        shapes.not_empty(name, "position", tensor.shape[2])
        shapes.not_empty(name, "channel", tensor.shape[3])
        if not tensor.dtype.is_floating_point or tensor.dtype != q.dtype:
            raise ShapeError(
                f"q, k and v must share one floating-point type, got {name} in {tensor.dtype} and q in {q.dtype}; "
                f"convert with .to(...) before the call"
            )
    shapes.same("batch size", "q", q.shape[0], "k", k.shape[0])
    shapes.same("batch size", "k", k.shape[0], "v", v.shape[0])
    shapes.same("width", "q", q.shape[3], "k", k.shape[3])
    shapes.same("length", "k", k.shape[2], "v", v.shape[2])
    maps, key_maps, groups = mechanism.maps, mechanism.key_maps, v.shape[1]
    if k.shape[1] != groups * key_maps:
        raise ShapeError(
            f"{mechanism.name} reads {key_maps} key head(s) for each value head, got {k.shape[1]} key heads "
            f"and {groups} value heads; give k {groups * key_maps} heads"
        )
    if groups == 0 or q.shape[1] % (maps * groups):
        raise ShapeError(
            f"q must have {maps} x a multiple of {groups} value heads for {mechanism.name}, got {q.shape[1]} heads; "
            f"query head h reads value head h // (heads / value heads)"
        )
    return q.shape[1] // maps


def _positions(q: Tensor, sizes: Mapping[str, int], positions: Positions | None) -> Positions:
    """By default aligned at the end: the last query stands on the last key."""
    if positions is None:
        return Positions.counted(sizes["T"], sizes["S"])
    for name, tensor in positions.check(sizes).items():
        _one_device(q.device, {f"positions.{name}": tensor})
    return positions


def _keep(keep: Tensor, sizes: Mapping[str, int]) -> Tensor:
    if keep.dtype != torch.bool:
        raise ShapeError(f"keep must be boolean (True: take part), got {keep.dtype}; pass a float mask as bias")
    shapes.broadcastable("keep", keep, "BHTS", [sizes[axis] for axis in "BHTS"])
    return keep


def _bias(mechanism: Mechanism, bias: Tensor, sizes: Mapping[str, int]) -> tuple[Tensor | None, Tensor]:
    """The finite part of the bias, and where it is not minus infinity: -inf means the key takes no part."""
    if not bias.dtype.is_floating_point:
        raise ShapeError(
            f"bias is added to the scores, so it must be floating-point, got {bias.dtype}; pass a mask as keep"
        )
    shapes.broadcastable("bias", bias, "BHTS", [sizes[axis] for axis in "BHTS"])
    bias = bias.view((1,) * (4 - bias.ndim) + bias.shape)
    open_ = bias != -math.inf
    if mechanism.takes_bias:
        return torch.where(open_, bias, 0.0), open_
    if not bool((bias[open_] == 0).all()):
        raise UnsupportedError(
            f"{mechanism.name} scores are cosines in [-1, 1], so a finite additive bias has no meaning for it; "
            f"pass keep, or a bias of 0 and -inf only"
        )
    return None, open_


def _scale(mechanism: Mechanism, scale: float | None, width: int) -> float:
    if scale is not None and not math.isfinite(scale):
        raise RangeError(f"scale must be a finite number, got {scale}; leave it out for {width}^-1/2")
    if not mechanism.cosine_scores:
        return width**-0.5 if scale is None else scale
    if scale is not None:
        raise UnsupportedError(
            f"{mechanism.name} scores are cosines, so scale={scale} has no meaning for it; leave it out"
        )
    return 1.0


def align(
    mechanism: Mechanism,
    given: Scalars | None,
    site: Site,
    sizes: Mapping[str, int],
    *,
    carry: torch.dtype,
    device: torch.device,
) -> Aligned:
    """Every scalar the mechanism needs, given or default, checked and shaped to broadcast."""
    given = given or {}
    known = [scalar.name for scalar in mechanism.scalars]
    for name in given:
        if name not in known:
            raise UnknownNameError(
                f"{mechanism.name} has no scalar {name!r}; {nearest(name, known)}it takes: {', '.join(known) or 'none'}"
            )
    aligned = Aligned()
    for scalar in mechanism.scalars:
        if scalar.name not in given and scalar.follows is not None:
            aligned[scalar.name] = aligned[scalar.follows]
            continue
        value = given[scalar.name] if scalar.name in given else scalar.default(site)
        if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
            raise ShapeError(
                f"{scalar.name} is {scalar.meaning}: a number, got a boolean; pass {float(scalar.probes[0])}"
            )
        tensor = torch.as_tensor(value, dtype=carry, device=device)
        shapes.broadcastable(scalar.name, tensor, scalar.per.value or "()", [sizes[axis] for axis in scalar.per.value])
        if may_look():  # elsewhere the links keep scalars in range
            scalar.check(mechanism.name, tensor)
        aligned[scalar.name] = _view(tensor.expand([sizes[axis] for axis in scalar.per.value]), scalar.per)
    return aligned


def _view(tensor: Tensor, per: Per) -> Tensor:
    if per is Per.HEAD:
        return tensor[:, None, None]
    if per is Per.HEAD_CHANNEL:
        return tensor[:, None, :]
    return tensor[..., None] if per in (Per.QUERY, Per.KEY) else tensor
