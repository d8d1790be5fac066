"""The definition, run as it stands: the whole B H T S tensor in memory. Every other backend is measured against this.

Letters: B batch, H heads, G key heads, M maps, T queries, S keys, K key width, V value width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from keysift.kernels.call import Call, carrier
from keysift.mechanisms.rules import Apply, Visible
from keysift.mechanisms.spec import Mechanism, Per


def _as_it_is(x: Tensor) -> Tensor:
    return x


def run(
    call: Call, *, on_scores: Callable[[Tensor], Tensor] = _as_it_is, on_weights: Callable[[Tensor], Tensor] = _as_it_is
) -> tuple[Tensor, Tensor]:
    """Output B H T V and weights B H T S, in the type of the inputs. A caller may look at scores and weights on the
    way, or replace them; scores of several maps come as neighbouring heads."""
    q, k, v, scalars = prepare(call)
    x = on_scores(torch.stack(_scores(call, q, k), dim=2).flatten(1, 2))
    maps = x.view(x.shape[0], call.heads, call.mechanism.maps, *x.shape[2:]).unbind(2)
    weights = on_weights(weigh(call.mechanism, maps, call.visible(), scalars))
    out = finish(call.mechanism, weights @ v, scalars)
    return out.to(call.v.dtype), weights.to(call.v.dtype)


def prepare(call: Call) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """q, k and v of every head, in fp32 or better, brought to where scores are taken; and the scalars."""
    q, k, v, scalars = _expand(call)
    for step in call.mechanism.prepare:
        q, k, v = step(q, k, v, call.at, call.key_at, **_pick(call.mechanism, step, scalars))
    return q, k, v, scalars


def finish(mechanism: Mechanism, out: Tensor, scalars: Mapping[str, Tensor]) -> Tensor:
    for step in mechanism.finish:
        out = step(out, **_pick(mechanism, step, scalars))
    return out


def weigh(mechanism: Mechanism, scores: tuple[Tensor, ...], visible: Visible, scalars: Mapping[str, Tensor]) -> Tensor:
    """The one place where the mask is applied: before the rule, so that nothing hidden is read, and after it."""
    keep = visible.keep_BHTS
    maps = tuple(torch.where(keep, x, 0.0) for x in scores)
    return torch.where(keep, mechanism.rule.weigh(maps, visible, applying(mechanism, scalars)), 0.0)


def applying(mechanism: Mechanism, scalars: Mapping[str, Tensor]) -> Apply:
    """Calls functions of the mechanism with the scalars they name."""

    def apply(step: Callable[..., Any], *tensors: Tensor) -> Any:
        found = step(*tensors, **_pick(mechanism, step, scalars))
        return torch.tensor(found) if isinstance(found, float) else found

    return apply


def _pick(mechanism: Mechanism, step: Callable[..., object], scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: scalars[name] for name in mechanism.wants[step]}


def _expand(call: Call) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Every query head gets its own copy of the key head it reads; a map of a query head reads its map of the key head.

    q and k keep their maps as neighbouring heads: B (H M) T K against B (H M) S K.
    """
    carry = carrier(call.q)
    maps, key_maps = call.mechanism.maps, call.mechanism.key_maps
    each = call.heads // call.v.shape[1]
    v = repeated(call.v.to(carry), each)
    k = call.k.to(carry).unflatten(1, (-1, key_maps))  # type: ignore[no-untyped-call]
    k = repeated(k, each).expand(-1, -1, maps, -1, -1).flatten(1, 2)
    per = {scalar.name: scalar.per for scalar in call.mechanism.scalars}
    scalars = {
        name: repeated(value, each) if per[name] in (Per.KEY, Per.KEY_CHANNEL) else value
        for name, value in call.scalars.items()
    }
    return call.q.to(carry), k, v, scalars


def repeated(x: Tensor, times: int) -> Tensor:
    """Every head `times` times, as neighbours; once is no copy."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def _scores(call: Call, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    x = call.scale * (q @ k.mT)
    x_BHMTS = x.view(x.shape[0], call.heads, call.mechanism.maps, *x.shape[2:])
    if call.bias is not None:
        x_BHMTS = x_BHMTS + call.bias[:, :, None].to(x_BHMTS.dtype)
    return x_BHMTS.unbind(2)
