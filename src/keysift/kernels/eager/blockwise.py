"""The blockwise backend: pointwise mechanisms in plain torch, a block of queries against a block of keys at a time.

The outputs of key blocks add up: h = sum over key blocks of weights @ v, in any order. Memory is O(T x block) forward
and backward, because each pair of blocks is recomputed for its gradient. A pair of blocks is computed only for the
heads whose window reaches it.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from keysift.kernels.backend import Backend
from keysift.kernels.call import Call, slice_pairs
from keysift.kernels.eager import dense
from keysift.kernels.transforms import in_function_transform
from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Per

BLOCK = 256  # queries per block, and keys per block


def declines(call: Call, return_weights: bool) -> str | None:
    if not isinstance(call.mechanism.rule, Pointwise):
        return f"{call.mechanism.name} is not pointwise, so the outputs of key blocks do not add up"
    if return_weights:
        return "it never forms all weights at once"
    if in_function_transform():
        return "it recomputes blocks in its backward pass, which torch.func cannot transform"
    return None


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    blocks = [_query_block(call, rows, q, k, v, scalars) for rows in _slices(q.shape[2])]
    out = dense.finish(call, torch.cat(blocks, dim=2), scalars)
    return out.to(call.v.dtype), None


def _slices(length: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, length)) for start in range(0, length, BLOCK)]


def _query_block(call: Call, rows: slice, q: Tensor, k: Tensor, v: Tensor, scalars: dict[str, Tensor]) -> Tensor:
    """Output of one block of queries: a sum over the key blocks that lie in the window of some head."""
    total = q.new_zeros(q.shape[0], call.heads, rows.stop - rows.start, v.shape[3])
    for keys in _slices(k.shape[2]):
        heads = _heads_in_window(call, rows, keys)
        if heads is None:
            continue
        subset = len(heads) < call.heads
        tensors = [x.index_select(1, heads) if subset else x for x in (q[:, :, rows], k[:, :, keys], v[:, :, keys])]
        selected = heads if subset else None
        out = checkpoint(_block_pair, call, rows, keys, selected, scalars, *tensors, use_reentrant=False)
        total = total.index_add(1, heads, out) if subset else total + out
    return total


def _heads_in_window(call: Call, rows: slice, keys: slice) -> Tensor | None:
    """Heads whose window contains the closest query and key of these blocks, or None if there are none."""
    at, key_at = call.at[..., rows], call.key_at[..., keys]
    if call.causal and int(key_at.amin()) > int(at.amax()):
        return None
    beyond = call.window is not None and int(at.amin()) - int(key_at.amax()) >= call.window
    if beyond and int(key_at.amin()) >= call.kept:
        return None
    all_heads = torch.arange(call.heads, device=call.q.device)
    if call.mechanism.window_scalar is None:
        return all_heads
    nearest = at.amin(-1) - key_at.amax(-1)  # B|1 x H|1: the smallest distance of any pair
    window = call.scalars[call.mechanism.window_scalar].detach()[:, 0, 0]
    heads = all_heads[(nearest < window).expand(-1, call.heads).any(0)]
    return heads if len(heads) else None


def _block_pair(
    call: Call,
    rows: slice,
    keys: slice,
    heads: Tensor | None,
    scalars: dict[str, Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Contribution of these keys to the output of these queries."""
    x = call.scale * (q @ k.mT)
    visible = call.visible(rows, keys)
    block_visible = replace(
        visible,
        keep_BHTS=_select_heads(heads, visible.keep_BHTS),
        distance_BHTS=_select_heads(heads, visible.distance_BHTS),
    )
    bias = None if call.bias is None else _select_heads(heads, slice_pairs(call.bias, rows, keys))
    x = call.add_biases(x, block_visible, bias)
    block_scalars = {name: slice_scalar(call, name, value, rows, keys, heads) for name, value in scalars.items()}
    return dense.weigh(call.mechanism, (x,), block_visible, block_scalars) @ v


def _select_heads(heads: Tensor | None, x: Tensor) -> Tensor:
    """Select heads of a tensor that broadcasts to B H T S."""
    if heads is None or x.ndim < 3 or x.shape[-3] == 1:
        return x
    return x.index_select(x.ndim - 3, heads)


def slice_scalar(call: Call, name: str, value: Tensor, rows: slice, keys: slice, heads: Tensor | None) -> Tensor:
    """Slice an aligned scalar to these queries, keys and heads."""
    per = call.mechanism.scalar(name).per
    if per in (Per.QUERY, Per.QUERY_CHANNEL):
        value = value[:, :, rows]
    if per.of_key:
        value = value[:, :, keys]
    return _select_heads(heads, value) if "H" in per.value or "G" in per.value else value


BACKEND = Backend(
    name="blockwise",
    about="plain torch, block by block, for pointwise mechanisms; memory grows with queries only",
    run=run,
    declines=declines,
    blocked=True,
)
