"""One layer's attention, from the tokens at hand alone or with a store of the past.

Letters: B batch, H heads, G key heads, N key maps, T queries, S keys, K key width, V value width.
"""

from dataclasses import dataclass

from torch import Tensor

from keysift.kernels import dense
from keysift.kernels.attend import attend, attend_call, attend_rings, reads_rings
from keysift.kernels.call import check
from keysift.kernels.positions import Positions
from keysift.mechanisms.spec import Mechanism, Per
from keysift.nn.cache import Reading
from keysift.nn.store import Store
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
    reading: Reading,
    store: Store | None,
    look: Look,
) -> Tensor:
    """B H T V. Scores and weights are formed only if somebody watches them."""
    k, v, positions = k_BGTK, v_BGTV, reading.positions
    if store is not None:
        one_token = q_BHTK.shape[2] == 1 and not look.watched
        if one_token and store.carries(q_BHTK.dtype) and reads_rings(mechanism, q_BHTK, scalars):
            return _step(mechanism, q_BHTK, k, v, scalars, reading, store)
        k, v, scalars, positions = _remember(mechanism, k, v, scalars, reading, store)
    if not look.watched:
        return attend(mechanism, q_BHTK, k, v, scalars=scalars, positions=positions)
    call = look.call(check(mechanism, q_BHTK, k, v, scalars=scalars, positions=positions))
    if look.scores.watched or look.relevance.watched:
        return dense.run(call, on_scores=look.scores, on_weights=look.relevance)[0]
    return attend_call(call)


def _step(
    mechanism: Mechanism,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scalars: dict[str, Tensor],
    reading: Reading,
    store: Store,
) -> Tensor:
    """One new token a row: nothing of the past is copied, so a head pays for its own window and no other's."""
    assert reading.append is not None
    rings, count = store.step({"k": k, "v": v}, reading.append)
    first = [reading.append.start + number for number in rings.first]
    return attend_rings(mechanism, q, rings, scalars, reading.positions.seeing(first, count, rings.keys))


def _remember(
    mechanism: Mechanism, k: Tensor, v: Tensor, scalars: dict[str, Tensor], reading: Reading, store: Store
) -> tuple[Tensor, Tensor, dict[str, Tensor], Positions]:
    """Keys, values and the scalars that belong to keys, past and new; the key maps of a head travel as channels."""
    assert reading.append is not None
    of_keys = {s.name: s.per for s in mechanism.scalars if s.per in (Per.KEY, Per.KEY_CHANNEL)}
    new = {"k": _as_channels(k, mechanism.key_maps), "v": v}
    for name, per in of_keys.items():
        new[name] = scalars[name] if per is Per.KEY_CHANNEL else scalars[name][..., None]
    held = store.extend(new, reading.append)
    k = _as_heads(held.entries["k"], mechanism.key_maps)
    past = {
        name: held.entries[name] if per is Per.KEY_CHANNEL else held.entries[name][..., 0]
        for name, per in of_keys.items()
    }
    first = [reading.append.start + number for number in held.first]
    return (
        k,
        held.entries["v"],
        scalars | past if past else scalars,
        reading.positions.seeing(first, held.count, k.shape[2]),
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
