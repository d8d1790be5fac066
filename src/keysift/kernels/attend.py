"""The one door: `attend(mechanism, q, k, v)` runs any mechanism, `explain` says which backend would run and why.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Unpack, overload

import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.core.registry import Registry
from keysift.kernels import blockwise, by_rows, dense, hidden, native, screening_cpu, sdpa, sums_cpu, thresholds_cpu
from keysift.kernels import call as calls
from keysift.kernels.call import Call, Options, Scalars
from keysift.kernels.native import Reason
from keysift.kernels.positions import Positions
from keysift.kernels.rings import Rings
from keysift.mechanisms import find
from keysift.mechanisms.spec import Mechanism


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One implementation, and what speaks against it: on this machine, for a call, or only for choosing it unasked."""

    name: str
    about: str
    run: Callable[[Call], tuple[Tensor, Tensor | None]]
    unusable: Callable[[], Reason | None] = lambda: None
    declines: Callable[[Call, bool], str | None] = lambda call, return_weights: None
    not_worth: Callable[[Call], str | None] = lambda call: None
    reads_only_visible: bool = False  # what a query does not see is never read, forward and backward


@dataclass(frozen=True)
class Choice:
    """Which backend runs a call, and why the ones preferred to it do not."""

    backend: str
    declined: Mapping[str, str]


BACKENDS: Registry[Backend] = Registry("backend")
for _backend in (  # in order of preference
    Backend(
        name="screening_cpu",
        about="the compiled kernel for screening: skips what is outside a window or refused, exactly",
        run=screening_cpu.run,
        unusable=native.unusable,
        declines=screening_cpu.declines,
        reads_only_visible=True,
    ),
    Backend(
        name="sdpa",
        about="the softmax family on torch's fused attention kernel; memory grows with queries only",
        run=sdpa.run,
        declines=sdpa.declines,
    ),
    Backend(
        name="sums_cpu",
        about="the compiled kernel for mechanisms of one pass: sums over blocks; memory grows with queries only",
        run=sums_cpu.run,
        unusable=native.unusable,
        declines=sums_cpu.declines,
    ),
    Backend(
        name="thresholds_cpu",
        about="the compiled solver for sparsemax and entmax, a block of rows at a time; memory grows with keys only",
        run=thresholds_cpu.run,
        unusable=native.unusable,
        declines=thresholds_cpu.declines,
        not_worth=blockwise.not_worth,
    ),
    Backend(
        name="blockwise",
        about="plain torch, block by block, for mechanisms that judge each key alone; memory grows with queries only",
        run=blockwise.run,
        declines=blockwise.declines,
        not_worth=blockwise.not_worth,
    ),
    Backend(
        name="by_rows",
        about="plain torch, a block of whole rows at a time, for every mechanism; memory grows with keys only",
        run=by_rows.run,
        declines=by_rows.declines,
        not_worth=blockwise.not_worth,
    ),
    Backend(name="dense", about="the definition in plain torch; memory grows with queries x keys", run=dense.run),
):
    BACKENDS.add(_backend.name, _backend)

# A plain list, because torch.compile guards on it; it does not know context variables.
_only: list[str] = []


@contextmanager
def only(backend: str) -> Iterator[None]:
    """Within, backend="auto" means this one, which then runs or raises: for comparing whole models, in one thread."""
    _only.append(BACKENDS.find(backend).name)
    try:
        yield
    finally:
        _only.pop()


@overload
def attend(
    mechanism: str | Mechanism,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_weights: Literal[False] = ...,
    backend: str = ...,
    **options: Unpack[Options],
) -> Tensor: ...


@overload
def attend(
    mechanism: str | Mechanism,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_weights: Literal[True],
    backend: str = ...,
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...


def attend(
    mechanism: str | Mechanism,
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
    return_weights: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention by any mechanism: q B H T K, k B Hkv S K, v B Hkv S V -> B H T V.

    H is a multiple of Hkv; query head h reads key head h // (H / Hkv). The differential family reads two query heads
    for each output head, neighbours, and all of it but version 2 two key heads.

    keep            boolean, broadcastable to B H T S; True: the key takes part
    bias            added to the scores, for mechanisms whose scores are logits; -inf is the same as keep=False
    causal          key s is visible to query t iff it stands at or before it; the last query stands on the last key
    scale           in front of q . k, by default K^-1/2
    scalars         the mechanism's scalars as values (not raw parameters); what is left out takes its initial value
    positions       where queries and keys stand, if not as above: packed documents, padding, a cache (see Positions)
    return_weights  also return the weights, B H T S
    backend         "auto", or a name from BACKENDS, which then runs or raises

    A query that sees no key gets zeros, and zero gradients. Statistics are fp32 whatever the inputs are.
    A position that takes no part may hold anything, NaN included; a row that sees a NaN or an infinity is NaN.
    """
    checked = calls.check(
        find(mechanism),
        q,
        k,
        v,
        keep=keep,
        bias=bias,
        causal=causal,
        scale=scale,
        scalars=scalars,
        positions=positions,
    )
    out, weights = _run(checked, backend, return_weights)
    if not return_weights:
        return out
    assert weights is not None, "a backend was chosen for weights it does not return"
    return out, weights


def _empty(call: Call) -> tuple[Tensor, Tensor]:
    """Output and weights of no rows, alike for every backend; gradients are zeros."""
    nothing = sum((x.sum() * 0 for x in (call.q, call.k, call.v, *call.scalars.values())), call.q.new_zeros(()))
    queries, keys, width = call.q.shape[2], call.k.shape[2], call.v.shape[3]
    out, weights = (call.v.new_zeros(0, call.heads, queries, size) for size in (width, keys))
    return (out + nothing).to(call.v.dtype), weights


def attend_call(call: Call) -> Tensor:
    """The output of a call that is checked already, by the backend `attend` would choose."""
    return _run(call, "auto", return_weights=False)[0]


def reads_rings(mechanism: Mechanism, q: Tensor, scalars: Scalars) -> bool:
    """Whether a call can leave the keys of a cache where they lie: the backend `attend` prefers can read them there."""
    asked = not _only or _only[-1] == "screening_cpu"
    return asked and screening_cpu.reads_rings(mechanism, q, scalars) and native.unusable() is None


def attend_rings(mechanism: Mechanism, q: Tensor, rings: Rings, scalars: Scalars, positions: Positions) -> Tensor:
    """What `attend` gives for the keys of a cache in order, where `reads_rings` says so."""
    assert isinstance(scalars, calls.Aligned)
    return screening_cpu.run_rings(mechanism, q, rings, scalars, positions)


def _run(call: Call, backend: str, return_weights: bool) -> tuple[Tensor, Tensor | None]:
    chosen = BACKENDS.find(_choose(call, backend, return_weights).backend)
    if call.q.shape[0] == 0:
        return _empty(call)
    # Looking at every key of a long cache for one token would cost more than the token, and in a compiled graph, which
    # cannot look, hiding would form T x S.
    once = call.q.shape[2] == 1 and not torch.is_grad_enabled()
    trusted = chosen.reads_only_visible and (once or torch.compiler.is_compiling())
    clean, lost = (call, None) if trusted else hidden.hide(call)
    out, weights = chosen.run(clean)
    if lost is None:
        return out, weights
    return hidden.mark(lost, out), None if weights is None else hidden.mark_weights(call, lost, weights)


def explain(
    mechanism: str | Mechanism,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_weights: bool = False,
    backend: str = "auto",
    **options: Unpack[Options],
) -> Choice:
    """Which backend `attend` would use for the same arguments, and why not the ones it prefers. Computes nothing."""
    return _choose(calls.check(find(mechanism), q, k, v, **options), backend, return_weights)


def _choose(call: Call, backend: str, return_weights: bool) -> Choice:
    if backend == "auto" and _only:
        backend = _only[-1]
    auto = backend == "auto"
    candidates = list(BACKENDS) if auto else [BACKENDS.find(backend)]
    declined: dict[str, str] = {}
    for candidate in candidates:
        absent = candidate.unusable()
        reason = candidate.declines(call, return_weights) if absent is None else absent.text
        if auto and reason is None:
            reason = candidate.not_worth(call)
        if reason is None:
            return Choice(candidate.name, declined)
        declined[candidate.name] = reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined.items())
    raise UnsupportedError(f"no backend can run this call ({reasons}); pass backend='auto' to let one be chosen")
