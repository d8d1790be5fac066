"""`attend`, the single entry point to all mechanisms and backends, and `explain`, which reports the choice of backend.

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
from keysift.kernels import masked_values
from keysift.kernels.backend import Backend, CacheReader
from keysift.kernels.call import Call, Options, make_call
from keysift.kernels.cpu import decayed as cpu_decayed
from keysift.kernels.cpu import rectified as cpu_rectified
from keysift.kernels.cpu import screening as cpu_screening
from keysift.kernels.cpu import sticks as cpu_sticks
from keysift.kernels.cpu import sums as cpu_sums
from keysift.kernels.cpu import thresholds as cpu_thresholds
from keysift.kernels.eager import blockwise, dense, rows, sdpa
from keysift.kernels.gpu import screening as gpu_screening
from keysift.kernels.gpu import sums as gpu_sums
from keysift.kernels.positions import Positions
from keysift.kernels.scalars import Scalars
from keysift.mechanisms import find
from keysift.mechanisms.spec import Mechanism

SMALL_CALL = 512 * 512  # up to this many query-key pairs, splitting into blocks is slower


@dataclass(frozen=True)
class Choice:
    """The backend chosen for a call, and why each more preferred backend declined."""

    backend: str
    declined: Mapping[str, str]


BACKENDS: Registry[Backend] = Registry("backend")
_ON_CPU = (cpu_screening, cpu_decayed, sdpa, cpu_sums, cpu_rectified, cpu_sticks, cpu_thresholds)
_ON_GPU = (gpu_screening, gpu_sums)
for _module in (*_ON_CPU, *_ON_GPU, blockwise, rows, dense):  # in order of preference
    BACKENDS.add(_module.BACKEND.name, _module.BACKEND)
_CACHE_READERS = [(backend, backend.cache_reader) for backend in BACKENDS if backend.cache_reader is not None]

# A plain list, because torch.compile guards on lists and does not support context variables.
_forced: list[str] = []


@contextmanager
def force_backend(backend: str) -> Iterator[None]:
    """Within this context, backend="auto" means this backend, which runs or raises. Not thread-safe."""
    _forced.append(BACKENDS.find(backend).name)
    try:
        yield
    finally:
        _forced.pop()


def forced_backend() -> str | None:
    """The backend of the innermost `force_backend`, or None."""
    return _forced[-1] if _forced else None


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
    window: int | None = None,
    kept: int = 0,
    slopes: Tensor | None = None,
    return_weights: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention with any mechanism: q B H T K, k B Hkv S K, v B Hkv S V -> B H T V.

    H is a multiple of Hkv; query head h reads key head h // (H / Hkv). The differential family reads two neighbouring
    query heads for each output head and, except for version 2, two key heads.

    keep            boolean, broadcastable to B H T S; False masks the key
    bias            added to the scores, for mechanisms whose scores are logits; -inf is the same as keep=False
    causal          key s is visible to query t iff its position is at most that of t; the last query is at the
                    position of the last key
    scale           multiplies q . k, by default K^-1/2
    scalars         the mechanism's scalars as values (not raw parameters); a missing one takes its initial value
    positions       positions of queries and keys, if not as above: packed documents, padding, a cache (see Positions)
    window          a query sees its own key and the window - 1 keys before it; by default every key before it
    kept            keys at positions below this number stay visible beyond the window
    slopes          one constant per head: scores are lowered by it times the distance in positions (ALiBi)
    return_weights  also return the weights, B H T S
    backend         "auto", or a name from BACKENDS, which then runs or raises

    A query with no visible keys gets zeros, and zero gradients. Statistics are fp32 or better in every dtype.

    Masked positions may contain NaN or inf: they reach no output and no gradient. A row that sees one, in its query or
    in a visible key or value, is NaN in all channels and passes no gradient on. The weight of the key does not matter:
    zero hides no NaN. The same holds for scalars that are projected from a token.
    """
    call = make_call(
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
        window=window,
        kept=kept,
        slopes=slopes,
    )
    out, weights = _run(call, backend, return_weights)
    if not return_weights:
        return out
    assert weights is not None, "the chosen backend did not return weights"
    return out, weights


def attend_call(call: Call, *, keys_finite: bool = False) -> Tensor:
    """The output of a call that is already checked, from the backend `attend` would choose.

    keys_finite  the caller knows that keys and values are finite, so that they need not be read for it
    """
    return _run(call, "auto", return_weights=False, keys_finite=keys_finite)[0]


def attend_dense(
    call: Call, *, on_scores: Callable[[Tensor], Tensor], on_weights: Callable[[Tensor], Tensor]
) -> Tensor:
    """The output of the dense definition. `on_scores` and `on_weights` receive its scores and weights, and return them
    or replacements."""
    clean_call, nan_rows = masked_values.sanitize(call)
    if nan_rows is None:
        return dense.run(call, on_scores=on_scores, on_weights=on_weights)[0]

    def with_nan(weights: Tensor) -> Tensor:
        return on_weights(masked_values.restore_nan_weights(call, nan_rows, weights))

    return masked_values.restore_nan(nan_rows, dense.run(clean_call, on_scores=on_scores, on_weights=with_nan)[0])


def find_cache_reader(mechanism: Mechanism, q: Tensor, scalars: Scalars) -> CacheReader | None:
    """Cache reader of the most preferred backend that has one for this call.

    If it is None, the caller copies the keys out of the cache and calls `attend`.
    """
    for backend, reader in _CACHE_READERS:
        allowed = not _forced or _forced[-1] == backend.name
        if allowed and reader.supports(mechanism, q, scalars) and backend.unavailable() is None:
            return reader
    return None


def _run(call: Call, backend: str, return_weights: bool, *, keys_finite: bool = False) -> tuple[Tensor, Tensor | None]:
    chosen = BACKENDS.find(_choose(call, backend, return_weights).backend)
    if call.q.shape[0] == 0:
        return _empty(call)
    if not keys_finite and chosen.detects_non_finite(call):
        return chosen.run(call)
    clean_call, nan_rows = masked_values.sanitize(call, keys_finite=keys_finite)
    out, weights = chosen.run(clean_call)
    if nan_rows is None:
        return out, weights
    if weights is not None:
        weights = masked_values.restore_nan_weights(call, nan_rows, weights)
    return masked_values.restore_nan(nan_rows, out), weights


def _empty(call: Call) -> tuple[Tensor, Tensor]:
    """Output and weights of an empty batch, the same for every backend. Gradients are zeros."""
    zero = sum((x.sum() * 0 for x in (call.q, call.k, call.v, *call.scalars.values())), call.q.new_zeros(()))
    queries, keys, width = call.q.shape[2], call.k.shape[2], call.v.shape[3]
    out, weights = (call.v.new_zeros(0, call.heads, queries, size) for size in (width, keys))
    return (out + zero).to(call.v.dtype), weights


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
    """Report which backend `attend` would use for these arguments, and why others declined. Computes nothing."""
    return _choose(make_call(find(mechanism), q, k, v, **options), backend, return_weights)


def _choose(call: Call, backend: str, return_weights: bool) -> Choice:
    if backend == "auto" and _forced:
        backend = _forced[-1]
    auto = backend == "auto"
    candidates = list(BACKENDS) if auto else [BACKENDS.find(backend)]
    declined: dict[str, str] = {}
    for candidate in candidates:
        unavailable = candidate.unavailable()
        reason = candidate.declines(call, return_weights) if unavailable is None else unavailable.text
        if auto and reason is None and candidate.blocked and not (candidate.small_forward and not _needs_grad(call)):
            reason = _too_small(call)
        if auto and reason is None and _fewer_queries(call, candidate.min_queries):
            reason = f"fewer than {candidate.min_queries} queries do not fill a block"
        if reason is None:
            return Choice(candidate.name, declined)
        declined[candidate.name] = reason
    reasons = "; ".join(f"{name}: {reason}" for name, reason in declined.items())
    raise UnsupportedError(f"no allowed backend can run this call ({reasons}); pass backend='auto' to allow all")


def _needs_grad(call: Call) -> bool:
    inputs = (call.q, call.k, call.v, *call.scalars.values())
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def _fewer_queries(call: Call, minimum: int) -> bool:
    """Whether the call has fewer queries; unknown of a symbolic length, which a comparison would restrict."""
    queries = call.q.shape[2]
    return not isinstance(queries, torch.SymInt) and queries < minimum


def _too_small(call: Call) -> str | None:
    """Reason not to split this call into blocks, or None."""
    pairs = call.q.shape[2] * call.k.shape[2]
    return "the call is too small to be split into blocks" if pairs <= SMALL_CALL else None
