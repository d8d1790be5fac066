"""Dense backend: the dense definition of every mechanism. It stores all weights, B H T S.

Letters: B batch, H heads, G key heads, M score maps per head, T queries, S keys, K key width, V value width.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keysift.kernels.backend import Backend
from keysift.kernels.call import Call
from keysift.kernels.regions import visible_counts
from keysift.kernels.scalars import accumulation_dtype
from keysift.mechanisms.rules import Apply, Visible
from keysift.mechanisms.spec import Mechanism, Per


def _identity(x: Tensor) -> Tensor:
    return x


def run(
    call: Call, *, on_scores: Callable[[Tensor], Tensor] = _identity, on_weights: Callable[[Tensor], Tensor] = _identity
) -> tuple[Tensor, Tensor]:
    """Output B H T V and weights B H T S, in the dtype of the inputs.

    on_scores, on_weights  receive the scores and the weights, and return them or replacements. Scores of several maps
                           are passed as neighbouring heads.
    """
    q, k, v, scalars = prepare(call)
    x = on_scores(torch.stack(_scores(call, q, k), dim=2).flatten(1, 2))
    maps = x.view(x.shape[0], call.heads, call.mechanism.maps, *x.shape[2:]).unbind(2)
    weights = on_weights(weigh(call.mechanism, maps, call.visible(), scalars))
    out = finish(call, weights @ v, scalars)
    return out.to(call.v.dtype), weights.to(call.v.dtype)


def prepare(call: Call, *, adds_rest: bool = False) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """q, k and v of every head in fp32 or better, after the mechanism's `prepare` steps; and the scalars.

    adds_rest  the backend adds the mechanism's `rest_value` itself; otherwise `prepare` and `finish` do
    """
    q, k, v, scalars = _expand(call)
    for step in call.mechanism.prepare:
        q, k, v = step(q, k, v, call.at, call.key_at, **_pick(call.mechanism, step, scalars))
    if call.mechanism.rest_value is not None and not adds_rest:
        # sum w v + (1 - sum w) u = sum w (v - u) + u, so that no backend needs the sum of the weights.
        v = v - scalars[call.mechanism.rest_value]
    return q, k, v, scalars


def finish(call: Call, out: Tensor, scalars: Mapping[str, Tensor], *, adds_rest: bool = False) -> Tensor:
    """The output after the mechanism's `finish` steps. `out` sums the values that `prepare` returned."""
    mechanism = call.mechanism
    if mechanism.rest_value is not None and not adds_rest:
        out = torch.where(visible_counts(call) > 0, out + scalars[mechanism.rest_value], 0.0)
    for step in mechanism.finish:
        out = step(out, **_pick(mechanism, step, scalars))
    return out


def weigh(mechanism: Mechanism, scores: tuple[Tensor, ...], visible: Visible, scalars: Mapping[str, Tensor]) -> Tensor:
    """The weights of these scores. Masked scores are set to zero before the rule, masked weights after it."""
    keep = visible.keep_BHTS
    maps = tuple(torch.where(keep, x, 0.0) for x in scores)
    return torch.where(keep, mechanism.rule.weigh(maps, visible, with_scalars(mechanism, scalars)), 0.0)


def with_scalars(mechanism: Mechanism, scalars: Mapping[str, Tensor]) -> Apply:
    """Return a function that calls a step of the mechanism with the scalars that the step names."""
    return partial(_apply, mechanism, scalars)


def _apply(mechanism: Mechanism, scalars: Mapping[str, Tensor], step: Callable[..., Any], *tensors: Tensor) -> Any:
    result = step(*tensors, **_pick(mechanism, step, scalars))
    return torch.tensor(result) if isinstance(result, float) else result


def _pick(mechanism: Mechanism, step: Callable[..., object], scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: scalars[name] for name in mechanism.scalar_names[step]}


def _expand(call: Call) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Repeat each key and value head for the query heads that read it.

    q and k keep their maps as neighbouring heads: B (H M) T K and B (H M) S K.
    """
    dtype = accumulation_dtype(call.q)
    maps, key_maps = call.mechanism.maps, call.mechanism.key_maps
    group = call.heads // call.v.shape[1]
    if maps == group == 1 and call.q.dtype == dtype:
        return call.q, call.k, call.v, dict(call.scalars)
    v = repeat_heads(call.v.to(dtype), group)
    k = call.k.to(dtype).unflatten(1, (-1, key_maps))  # type: ignore[no-untyped-call]
    k = repeat_heads(k, group).expand(-1, -1, maps, -1, -1).flatten(1, 2)
    per = {scalar.name: scalar.per for scalar in call.mechanism.scalars}
    scalars = {
        name: repeat_heads(value, group) if per[name] in (Per.KEY, Per.KEY_CHANNEL) else value
        for name, value in call.scalars.items()
    }
    return call.q.to(dtype), k, v, scalars


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Repeat each head `times` times, next to each other. Returns x itself if `times` is 1."""
    return x if times == 1 else x.repeat_interleave(times, dim=1)


def _scores(call: Call, q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
    x = call.scale * (q @ k.mT)
    x_BHMTS = x.view(x.shape[0], call.heads, call.mechanism.maps, *x.shape[2:])
    if call.bias is None and call.slopes is None:
        return x_BHMTS.unbind(2)
    visible = call.visible()
    return tuple(call.add_biases(x_BHTS, visible, call.bias) for x_BHTS in x_BHMTS.unbind(2))


BACKEND = Backend(name="dense", about="the definition in plain torch; memory grows with queries x keys", run=run)
