"""One layer's attention, from the tokens at hand alone or with a store of the past.

Letters: B batch, H heads, G key heads, N key maps, T queries, S keys, K key width, V value width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.kernels import dense
from keysift.kernels.attend import attend, attend_call
from keysift.kernels.call import check
from keysift.mechanisms.spec import Mechanism, Per
from keysift.nn.cache import Span
from keysift.nn.store import EMPTY, Held, Store
from keysift.nn.tap import CallTap, Tap


@dataclass(frozen=True)
class Look:
    """The taps inside one layer's attention."""

    call: CallTap
    scores: Tap
    relevance: Tap

    @property
    def watched(self) -> bool:
        return self.call.watched or self.scores.watched or self.relevance.watched


def read(
    mechanism: Mechanism,
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTV: Tensor,
    scalars: dict[str, Tensor],
    span: Span,
    store: Store | None,
    look: Look,
) -> Tensor:
    """B H T V. Scores and weights are formed only if somebody watches them."""
    if span.lengths is not None and not look.watched and not _follows_tokens(mechanism):
        return _apart(mechanism, q_BHTK, k_BGTK, v_BGTV, scalars, span.lengths)
    at: Tensor | None = span.at_BT[:, None]
    k, v, key_at, keep = k_BGTK, v_BGTV, at, None
    if span.counted and torch.compiler.is_compiling():
        # A compiled graph cannot see that given positions are consecutive; attend's own are known to be.
        at = key_at = None
    if span.keep_BT is not None:
        keep = span.keep_BT[:, None, :, None] & span.keep_BT[:, None, None, :]
    if span.documents_BT is not None:
        keep = (span.documents_BT[:, :, None] == span.documents_BT[:, None, :])[:, None]
    if store is not None:
        k, v, scalars, held = _remember(mechanism, k, v, scalars, span, store)
        key_at, keep = _seen(mechanism, q_BHTK.shape[1], held, span)
    if not look.watched:
        return attend(mechanism, q_BHTK, k, v, keep=keep, scalars=scalars, at=at, key_at=key_at)
    call = look.call(check(mechanism, q_BHTK, k, v, keep=keep, scalars=scalars, at=at, key_at=key_at))
    if look.scores.watched or look.relevance.watched:
        return dense.run(call, on_scores=look.scores, on_weights=look.relevance)[0]
    return attend_call(call)


def _follows_tokens(mechanism: Mechanism) -> bool:
    return any(scalar.per.projected for scalar in mechanism.scalars)


def _apart(
    mechanism: Mechanism, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, scalars: dict[str, Tensor], lengths: list[int]
) -> Tensor:
    """Each document by itself, from position 0: no pair of two documents is formed, and every backend can serve."""
    rows, _, tokens, _ = q_BHTK.shape
    cut = [torch.split(x.transpose(0, 1).flatten(1, 2), lengths, dim=1) for x in (q_BHTK, k_BGTK, v_BGTV)]
    out = [attend(mechanism, q[None], k[None], v[None], scalars=scalars)[0] for q, k, v in zip(*cut, strict=True)]
    u_HXV = torch.cat(out, dim=1)
    return u_HXV.view(len(u_HXV), rows, tokens, -1).transpose(0, 1)


def _seen(mechanism: Mechanism, maps: int, held: Held, span: Span) -> tuple[Tensor, Tensor | None]:
    """Positions of the keys in view, and which of them may be seen where that is not all."""
    assert span.write is not None
    if held.index is None:
        keys = next(iter(held.entries.values())).shape[2]
        first = span.write.start + held.first
        return torch.arange(first, first + keys, device=span.at_BT.device)[None, None], None
    each = 1 if held.index.shape[1] == 1 else maps // mechanism.maps // held.index.shape[1]
    index_BHS = held.index.repeat_interleave(each, dim=1)
    return span.write.start + index_BHS, (index_BHS != EMPTY)[:, :, None] & span.write.keep_BT[:, None, :, None]


def _remember(
    mechanism: Mechanism, k: Tensor, v: Tensor, scalars: dict[str, Tensor], span: Span, store: Store
) -> tuple[Tensor, Tensor, dict[str, Tensor], Held]:
    """Keys, values and the scalars that belong to keys, past and new; the key maps of a head travel as channels."""
    assert span.write is not None
    of_keys = {s.name: s.per for s in mechanism.scalars if s.per in (Per.KEY, Per.KEY_CHANNEL)}
    b, heads, t, width = k.shape
    maps = mechanism.key_maps
    new = {"k": k.view(b, heads // maps, maps, t, width).transpose(2, 3).flatten(3), "v": v}
    for name, per in of_keys.items():
        new[name] = scalars[name] if per is Per.KEY_CHANNEL else scalars[name][..., None]
    held = store.extend(new, span.write)
    k_BGSX = held.entries["k"]
    s = k_BGSX.shape[2]
    k = k_BGSX.reshape(b, heads // maps, s, maps, width).transpose(2, 3).flatten(1, 2)
    past = {
        name: held.entries[name] if per is Per.KEY_CHANNEL else held.entries[name][..., 0]
        for name, per in of_keys.items()
    }
    return k, held.entries["v"], scalars | past, held
