"""Attention of one layer over the tokens of a call and, if there is one, the layer's cache.

Letters: B batch, H heads, G key heads, N key maps, T queries, S keys, K key width, V value width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.kernels.attend import attend_call, attend_dense, find_cache_reader
from keysift.kernels.backend import CacheReader
from keysift.kernels.call import make_call
from keysift.kernels.positions import Positions
from keysift.mechanisms.spec import Mechanism, Per
from keysift.nn.cache import AttentionContext
from keysift.nn.layer_cache import LayerCache
from keysift.nn.position import EVERY_KEY, LayerPosition
from keysift.nn.tap import CallTap, Tap


@dataclass(frozen=True)
class AttentionTaps:
    """Taps inside the attention of one layer."""

    call: CallTap
    scores: Tap
    relevance: Tap

    @property
    def has_listeners(self) -> bool:
        """Whether any of the taps has a listener or an editor."""
        return self.call.has_listeners or self.scores.has_listeners or self.relevance.has_listeners


def attend_with_cache(
    mechanism: Mechanism,
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTV: Tensor,
    scalars: dict[str, Tensor],
    context: AttentionContext,
    layer_cache: LayerCache | None,
    taps: AttentionTaps,
    position: LayerPosition = EVERY_KEY,
) -> Tensor:
    """Attention output B H T V.

    Appends the keys and values to `layer_cache`, if given, and attends to all of its entries. Scores and weights are
    formed only if a tap has listeners.
    """
    k, v, positions = k_BGTK, v_BGTV, context.positions
    keys_finite = False  # unknown
    if layer_cache is not None:
        new = _cache_entries(mechanism, k, v, scalars)
        keys_finite = layer_cache.check_finite(new)
        one_token = q_BHTK.shape[2] == 1 and not taps.has_listeners and position.reads_cache_in_place
        if one_token and keys_finite and layer_cache.has_dtype(q_BHTK.dtype):
            reader = find_cache_reader(mechanism, q_BHTK, scalars)
            if reader is not None:
                return _decode_step(reader, mechanism, q_BHTK, k, v, scalars, context, layer_cache)
        k, v, scalars, positions = _append(mechanism, new, scalars, context, layer_cache)
    slopes = position.slopes(q_BHTK.shape[1] // mechanism.maps)
    call = make_call(
        mechanism,
        q_BHTK,
        k,
        v,
        scalars=scalars,
        positions=positions,
        window=position.window,
        kept=position.kept,
        slopes=None if slopes is None else torch.tensor(slopes, device=q_BHTK.device),
    )
    if not taps.has_listeners:
        return attend_call(call, keys_finite=keys_finite)
    call = taps.call(call)
    if taps.scores.has_listeners or taps.relevance.has_listeners:
        return attend_dense(call, on_scores=taps.scores, on_weights=taps.relevance)
    return attend_call(call)


def append_to_cache(
    mechanism: Mechanism,
    k_BGTK: Tensor,
    v_BGTV: Tensor,
    scalars: dict[str, Tensor],
    context: AttentionContext,
    layer_cache: LayerCache,
) -> None:
    """Append keys and values to `layer_cache` without attending to it."""
    assert context.update is not None
    new = _cache_entries(mechanism, k_BGTK, v_BGTV, scalars)
    layer_cache.check_finite(new)
    layer_cache.append(new, context.update)


def _decode_step(
    reader: CacheReader,
    mechanism: Mechanism,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scalars: dict[str, Tensor],
    context: AttentionContext,
    layer_cache: LayerCache,
) -> Tensor:
    """Attention of one new token per row, reading the cache in place: each head pays for its own window only."""
    assert context.update is not None
    rings, count = layer_cache.step({"k": k, "v": v}, context.update)
    first = [context.update.start + number for number in rings.first]
    positions = context.positions.with_cached_keys(first, count, rings.keys)
    return reader.run(mechanism, q, rings, scalars, positions)


def _cache_entries(mechanism: Mechanism, k: Tensor, v: Tensor, scalars: dict[str, Tensor]) -> dict[str, Tensor]:
    """Keys, values and per-key scalars in the layout of the cache, B G T X. Key maps and query heads are channels."""
    new = {"k": _as_channels(k, mechanism.key_maps), "v": v}
    for name, per in _per_key(mechanism).items():
        if per is Per.HEAD_KEY:
            new[name] = scalars[name].unflatten(1, (v.shape[1], -1)).transpose(2, 3)  # type: ignore[no-untyped-call]
        else:
            new[name] = scalars[name] if per is Per.KEY_CHANNEL else scalars[name][..., None]
    return new


def _from_cache(entries: Tensor, per: Per) -> Tensor:
    """A per-key scalar of the cache, B G S X, as the mechanism reads it."""
    if per is Per.HEAD_KEY:
        return entries.transpose(2, 3).flatten(1, 2)
    return entries if per is Per.KEY_CHANNEL else entries[..., 0]


def _per_key(mechanism: Mechanism) -> dict[str, Per]:
    return {s.name: s.per for s in mechanism.scalars if s.per.of_key}


def _append(
    mechanism: Mechanism,
    new: dict[str, Tensor],
    scalars: dict[str, Tensor],
    context: AttentionContext,
    layer_cache: LayerCache,
) -> tuple[Tensor, Tensor, dict[str, Tensor], Positions]:
    """Append to the cache; returns all keys, values, per-key scalars and positions."""
    assert context.update is not None
    of_keys = _per_key(mechanism)
    held = layer_cache.extend(new, context.update)
    k = _as_heads(held.entries["k"], mechanism.key_maps)
    past = {name: _from_cache(held.entries[name], per) for name, per in of_keys.items()}
    first = [context.update.start + number for number in held.first]
    return (
        k,
        held.entries["v"],
        scalars | past if past else scalars,
        context.positions.with_cached_keys(
            first, held.count, k.shape[2], kept=layer_cache.kept, start=context.update.start
        ),
    )


def _as_channels(k_BGTK: Tensor, maps: int) -> Tensor:
    """B (G N) T K -> B G T (N K)."""
    if maps == 1:
        return k_BGTK
    b, heads, t, width = k_BGTK.shape
    return k_BGTK.view(b, heads // maps, maps, t, width).transpose(2, 3).flatten(3)


def _as_heads(k_BGTX: Tensor, maps: int) -> Tensor:
    """B G T (N K) -> B (G N) T K."""
    if maps == 1:
        return k_BGTX
    b, groups, t, channels = k_BGTX.shape
    return k_BGTX.reshape(b, groups, t, maps, channels // maps).transpose(2, 3).flatten(1, 2)
