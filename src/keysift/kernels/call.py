"""Call: the checked arguments of `attend`, in the form every backend reads.

Letters: B batch, H heads, G key heads, M query maps per head, N key maps per head, T queries, S keys, K, V widths.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor
from torch.autograd import forward_ad

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.kernels.positions import Positions
from keysift.kernels.scalars import AlignedScalars, Scalars, Value, accumulation_dtype, align_scalars
from keysift.kernels.transforms import can_inspect_values, in_forward_mode
from keysift.mechanisms.rules import Visible
from keysift.mechanisms.spec import Mechanism, Site


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of one call: q B (H M) T K, k B (G N) S K, v B G S V; scalars broadcast against B H T S."""

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
    window: int | None = None  # a query sees its own key and the window - 1 keys before it; None: every key before it
    kept: int = 0  # keys at positions below it are visible from beyond the window too
    slopes: Tensor | None = None  # H; a score is lowered by the slope of its head times the distance
    finite: bool = False  # whether q, k and v are known to be finite

    def known_finite(self) -> "Call":
        """The same call, marked as finite. Cheaper than dataclasses.replace, which checks and sets every field."""
        call = object.__new__(Call)
        call.__dict__.update(self.__dict__, finite=True)
        return call

    @property
    def at(self) -> Tensor:
        """Positions of the queries, broadcastable to B H T."""
        return self.positions.query_positions(self.q.device)

    @property
    def key_at(self) -> Tensor:
        return self.positions.key_positions(self.q.device)

    def visible(self, queries: slice = slice(None), keys: slice = slice(None)) -> Visible:
        """Attention mask and distances of some queries and keys, built on demand so that no backend must hold T x S."""
        distance = self.at[..., queries, None] - self.key_at[..., None, keys]
        mask = (
            distance >= (0 if self.mechanism.own_key else 1)
            if self.causal
            else torch.ones_like(distance, dtype=torch.bool)
        )
        same_document = self.positions.same_document(queries, keys)
        if same_document is not None:
            mask = mask & same_document
        if self.window is not None:
            near = distance < self.window
            mask = mask & (near | (self.key_at[..., None, keys] < self.kept) if self.kept else near)
        if self.keep is not None:
            mask = mask & slice_pairs(self.keep, queries, keys)
        return Visible(mask, distance, self.positions.in_order)

    @property
    def mask_positions(self) -> Positions:
        """Positions for masks: a query sees keys up to its position there. Not for angles or distances."""
        return self.positions if self.mechanism.own_key else self.positions.one_earlier()

    @property
    def mask_window(self) -> int | None:
        """The window at those positions."""
        return self.window if self.window is None or self.mechanism.own_key else self.window - 1

    def add_biases(self, x: Tensor, visible: Visible, bias: Tensor | None) -> Tensor:
        """Scores B H T S with this bias, and lowered by the distance of visible keys if heads have slopes."""
        if bias is not None:
            x = x + bias.to(x.dtype)
        if self.slopes is None:
            return x
        distance = torch.where(visible.keep_BHTS, visible.distance_BHTS, 0)
        return x - self.slopes[:, None, None].to(x.dtype) * distance


def slice_pairs(tensor: Tensor, queries: slice, keys: slice) -> Tensor:
    """Some queries and keys of a tensor that broadcasts to ... T S; axes of size 1 stay as they are."""
    if tensor.ndim > 1 and tensor.shape[-2] > 1:
        tensor = tensor[..., queries, :]
    return tensor[..., keys] if tensor.ndim and tensor.shape[-1] > 1 else tensor


class Options(TypedDict, total=False):
    """Keyword arguments that `attend` and `explain` share; `attend` documents them."""

    keep: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float | None
    scalars: Scalars | None
    positions: Positions | None
    window: int | None
    kept: int
    slopes: Tensor | None


def make_call(
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
    window: int | None = None,
    kept: int = 0,
    slopes: Tensor | None = None,
) -> Call:
    """Check the arguments of `attend` and return them as a Call."""
    plan = _plan(mechanism, q, k, v)
    sizes = plan.sizes
    if keep is not None or bias is not None or slopes is not None:
        _one_device(q.device, {"keep": keep, "bias": bias, "slopes": slopes})
    if mechanism.causal_only and not causal:
        raise UnsupportedError(
            f"{mechanism.name} is defined for keys at or before the query, so causal=False has no meaning for it; "
            f"leave causal=True"
        )
    positions = plan.positions if positions is None else _positions(q, sizes, positions)
    window, kept = _window(mechanism, window, kept, causal, positions)
    if keep is not None:
        keep = _keep(keep, sizes)
    if bias is not None:
        bias, unmasked = _bias(mechanism, bias, sizes)
        keep = unmasked if keep is None else keep & unmasked
    if scalars and not isinstance(scalars, AlignedScalars):
        _one_device(q.device, scalars)
    return Call(
        mechanism=mechanism,
        q=q,
        k=k,
        v=v,
        heads=plan.site.heads,
        positions=positions,
        causal=causal,
        keep=keep,
        bias=bias,
        scale=plan.scale if scale is None else _scale(mechanism, scale, q.shape[3]),
        window=window,
        kept=kept,
        slopes=None if slopes is None else _slopes(mechanism, slopes, sizes["H"], causal),
        scalars=scalars if isinstance(scalars, AlignedScalars) else _aligned(plan, scalars, q),
    )


@dataclass
class _Plan:
    """The parts of a call that depend only on the mechanism and on shapes, dtypes and devices of q, k and v."""

    mechanism: Mechanism
    site: Site
    sizes: dict[str, int]
    positions: Positions  # if none are given
    scale: float  # if none is given
    default_scalars: AlignedScalars | None = None


_PLANS: dict[tuple[Any, ...], _Plan] = {}
_MAX_PLANS = 256


def _plan(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> _Plan:
    """Check q, k and v. Repeated calls with the same shapes are answered from a table: checks cost more than a small
    kernel."""
    if not can_inspect_values():  # symbolic sizes cannot be keys of a table
        return _make_plan(mechanism, q, k, v)
    key = (id(mechanism), q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device)
    plan = _PLANS.get(key)
    # The plan keeps its mechanism alive, so that no other one has this id.
    if plan is None:
        plan = _make_plan(mechanism, q, k, v)
        if len(_PLANS) >= _MAX_PLANS:
            _PLANS.clear()
        _PLANS[key] = plan
    return plan


def _make_plan(mechanism: Mechanism, q: Tensor, k: Tensor, v: Tensor) -> _Plan:
    _one_device(q.device, {"k": k, "v": v})
    heads = _heads(mechanism, q, k, v)
    return _Plan(
        mechanism,
        Site(heads=heads, key_width=q.shape[3], value_width=v.shape[3]),
        {"B": q.shape[0], "H": heads, "G": v.shape[1], "T": q.shape[2], "S": k.shape[2], "V": v.shape[3]},
        Positions.counted(q.shape[2], k.shape[2]),
        _scale(mechanism, None, q.shape[3]),
    )


def _aligned(plan: _Plan, scalars: Scalars | None, q: Tensor) -> AlignedScalars:
    """The scalars of a call. Defaults are computed once per plan."""
    if not scalars and plan.default_scalars is not None:
        return plan.default_scalars
    dtype = accumulation_dtype(q)
    # Fake tensors and tensors of a trace must not be kept, and tensors of inference mode have no gradients later.
    if scalars or not can_inspect_values() or torch._C._len_torch_dispatch_stack() > 0:
        return align_scalars(plan.mechanism, scalars, plan.site, plan.sizes, dtype=dtype, device=q.device)
    with torch.inference_mode(False):
        plan.default_scalars = align_scalars(plan.mechanism, None, plan.site, plan.sizes, dtype=dtype, device=q.device)
    return plan.default_scalars


def has_tangents(call: Call) -> bool:
    """Whether an input carries a forward-mode derivative. A compiled operator would drop it."""
    if not in_forward_mode():
        return False
    tensors = (call.q, call.k, call.v, call.bias, *call.scalars.values())
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)  # type: ignore[no-untyped-call]


def _one_device(device: torch.device, tensors: Mapping[str, Value | None]) -> None:
    for name, value in tensors.items():
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


def _positions(q: Tensor, sizes: Mapping[str, int], positions: Positions) -> Positions:
    """The given positions, checked."""
    for name, tensor in positions.check(sizes).items():
        _one_device(q.device, {f"positions.{name}": tensor})
    return positions


def _window(
    mechanism: Mechanism, window: int | None, kept: int, causal: bool, positions: Positions
) -> tuple[int | None, int]:
    """The window and the number of kept keys, checked; None and 0 where every distance is inside the window."""
    if window is None:
        if kept:
            raise RangeError(f"kept={kept} adds keys to a window, and there is none; give window, or leave kept out")
        return None, 0
    if window < 1 or kept < 0:
        raise RangeError(f"window must be at least 1 (the own key) and kept at least 0, got {window} and {kept}")
    if window == 1 and not mechanism.own_key:
        raise RangeError(
            f"{mechanism.name} leaves out the own key, so a window of 1 holds no key; make it at least 2, got 1"
        )
    if not causal:
        raise UnsupportedError(
            f"window={window} counts keys at or before the query, so causal=False has no meaning with it; "
            f"leave causal=True, or pass the window as keep"
        )
    if positions.consecutive and positions.offset + positions.queries <= window:
        return None, 0
    return window, kept


def _slopes(mechanism: Mechanism, slopes: Tensor, heads: int, causal: bool) -> Tensor:
    if slopes.shape != (heads,) or not slopes.dtype.is_floating_point:
        raise ShapeError(
            f"slopes must hold one floating-point number for each of {heads} heads, got {slopes.dtype} "
            f"of shape {tuple(slopes.shape)}"
        )
    if not mechanism.takes_bias:
        raise UnsupportedError(
            f"{mechanism.name} scores are cosines in [-1, 1], so slopes have no meaning for it; leave them out"
        )
    if not causal:
        raise UnsupportedError("slopes lower scores by the distance to earlier keys; leave causal=True with them")
    return slopes.detach()


def _keep(keep: Tensor, sizes: Mapping[str, int]) -> Tensor:
    if keep.dtype != torch.bool:
        raise ShapeError(f"keep must be boolean (True: attend to the key), got {keep.dtype}; pass a float mask as bias")
    shapes.broadcastable("keep", keep, "BHTS", [sizes[axis] for axis in "BHTS"])
    return keep


def _bias(mechanism: Mechanism, bias: Tensor, sizes: Mapping[str, int]) -> tuple[Tensor | None, Tensor]:
    """The bias with -inf replaced by 0, and the mask of the other entries: -inf masks the key."""
    if not bias.dtype.is_floating_point:
        raise ShapeError(
            f"bias is added to the scores, so it must be floating-point, got {bias.dtype}; pass a mask as keep"
        )
    shapes.broadcastable("bias", bias, "BHTS", [sizes[axis] for axis in "BHTS"])
    bias = bias.view((1,) * (4 - bias.ndim) + bias.shape)
    unmasked = bias != -math.inf
    if mechanism.takes_bias:
        return torch.where(unmasked, bias, 0.0), unmasked
    if not bool((bias[unmasked] == 0).all()):
        raise UnsupportedError(
            f"{mechanism.name} scores are cosines in [-1, 1], so a finite additive bias has no meaning for it; "
            f"pass keep, or a bias of 0 and -inf only"
        )
    return None, unmasked


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
