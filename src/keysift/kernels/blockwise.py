"""Any mechanism that judges each key alone, a block of queries against a block of keys at a time, in plain torch.

Such weights add up: h = sum over key blocks of weights @ v, in any order. Memory is O(T x block) forward and backward
(each pair of blocks is computed anew for its gradient), and pairs of blocks that lie outside every head's band are
never formed. A head joins a pair of blocks only if its own band reaches it.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from keysift.kernels import dense
from keysift.kernels.call import Call, part, transformed
from keysift.mechanisms.rules import Pointwise, Visible
from keysift.mechanisms.spec import Per

BLOCK = 256
SMALL = 512 * 512  # queries x keys up to which the whole is one block's work


def declines(call: Call, return_weights: bool) -> str | None:
    if not isinstance(call.mechanism.rule, Pointwise):
        return f"{call.mechanism.name} weighs keys against each other, so blocks of keys do not add up"
    if return_weights:
        return "it never forms the weights as a whole"
    if transformed():
        return "it computes blocks anew in its backward pass, which torch.func cannot transform"
    return None


def not_worth(call: Call) -> str | None:
    if call.q.shape[2] * call.k.shape[2] <= SMALL:
        return "so few queries and keys are one block's work"
    return None


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    blocks = [_one_block(call, rows, q, k, v, scalars) for rows in _slices(q.shape[2])]
    out = dense.finish(call.mechanism, torch.cat(blocks, dim=2), scalars)
    return out.to(call.v.dtype), None


def _slices(length: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def _one_block(call: Call, rows: slice, q: Tensor, k: Tensor, v: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """The sum for one block of queries over every block of keys its heads can see."""
    total = q.new_zeros(q.shape[0], call.heads, rows.stop - rows.start, v.shape[3])
    for keys in _slices(k.shape[2]):
        heads = _reaching(call, rows, keys)
        if heads is None:
            continue
        some = len(heads) < call.heads
        pair = [x.index_select(1, heads) if some else x for x in (q[:, :, rows], k[:, :, keys], v[:, :, keys])]
        added = checkpoint(_pair, call, rows, keys, heads if some else None, scalars, *pair, use_reentrant=False)
        total = total.index_add(1, heads, added) if some else total + added
    return total


def _reaching(call: Call, rows: slice, keys: slice) -> Tensor | None:
    """The heads whose band holds any pair of this block, decided on the positions at the blocks' ends."""
    at, key_at = call.at[..., rows], call.key_at[..., keys]
    if call.causal and int(key_at.amin()) > int(at.amax()):
        return None
    every = torch.arange(call.heads, device=call.q.device)
    if call.mechanism.band is None:
        return every
    nearest = at.amin(-1) - key_at.amax(-1)  # B|1 x H|1: no pair is nearer
    reach = call.scalars[call.mechanism.band].detach()[:, 0, 0]
    heads = every[(nearest < reach).expand(-1, call.heads).any(0)]
    return heads if len(heads) else None


def _pair(
    call: Call,
    rows: slice,
    keys: slice,
    heads: Tensor | None,
    scalars: dict[str, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    x = call.scale * (q @ k.mT)
    seen = call.visible(rows, keys)
    if call.bias is not None:
        x = x + _of(heads, part(call.bias, rows, keys)).to(x.dtype)
    near = Visible(_of(heads, seen.keep_BHTS), _of(heads, seen.distance_BHTS))
    own = {name: scalar_part(call, name, value, rows, keys, heads) for name, value in scalars.items()}
    return dense.weigh(call.mechanism, (x,), near, own) @ v


def _of(heads: Tensor | None, x: Tensor) -> Tensor:
    """The chosen heads of something that broadcasts to B H T S."""
    if heads is None or x.ndim < 3 or x.shape[-3] == 1:
        return x
    return x.index_select(x.ndim - 3, heads)


def scalar_part(call: Call, name: str, value: Tensor, rows: slice, keys: slice, heads: Tensor | None) -> Tensor:
    per = call.mechanism.scalar(name).per
    if per in (Per.QUERY, Per.QUERY_CHANNEL):
        value = value[:, :, rows]
    if per in (Per.KEY, Per.KEY_CHANNEL):
        value = value[:, :, keys]
    return _of(heads, value) if "H" in per.value or "G" in per.value else value
