"""Softmax attention with forget gates on torch's CPU operator: `keysift::forgetting` and its backward pass.

    x_ij = scale q_i . k_j + C_i - C_j,   C the running sum of the logarithms of the gates, in fp64

C_i is the same for all keys of a row and cancels, so that -C_j is a bias of the key: one more channel, 1 in the queries
and -C_j / scale in the keys, whose gradient is that of C_j. C grows with the text and would cost digits, so queries are
processed in blocks, and the bias of a block is counted from the middle of it. Keys whose weights are zero in fp32 for
every query of a block are left out.

Letters: B batch, H heads, T queries, S keys, K key width, V value width.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.kernels.eager import softmax_operators
from keysift.kernels.regions import Band, Region, own_keys, regions_of_segment
from keysift.kernels.schema import schema
from keysift.kernels.transforms import no_double_backward, through_operator

BLOCKS = (4096, 2048, 1024, 512, 256, 128, 64)  # queries of a block; the longest with little decay
DECAY = 8.0  # within half a block: fp32 then holds scores to 1e-6
VANISHED = 104.0  # exp(-104) is below the smallest fp32 number
CHANNELS = 8  # added for the bias; the kernel is faster with 8 than with 1


class Inputs(NamedTuple):
    """Inputs of both operators, in the order of their schemas."""

    q: Tensor
    k: Tensor
    v: Tensor  # as wide as q and k
    decay: Tensor  # B H S fp64: C, which falls from key to key
    segments: Tensor | None  # see Positions; None: each row is one segment with this offset
    offset: int
    window: int  # 0: none
    scale: float


_INPUTS = schema(Inputs)


def attention(x: Inputs) -> Tensor:
    """The output, B H T V. A row with no visible keys gets zeros."""
    if through_operator(x):
        out: Tensor = _forgetting(*x)[0]
        return out
    if x.q.shape[2] == 1 and x.segments is None and x.offset == x.k.shape[2] - 1 and not x.window:
        bias = (x.decay[..., -1:] - x.decay)[:, :, None].to(x.q.dtype)
        q, k, v = (softmax_operators.contiguous_rows(t) for t in x[:3])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=x.scale)
    return _forward(x)[0]


class Block(NamedTuple):
    """Regions of some queries of a row, and the key from whose C their biases are counted."""

    regions: list[Region]
    reference: int


def _block_size(decay_BHS: Tensor) -> int:
    for size in BLOCKS[:-1]:
        half = min(size // 2, decay_BHS.shape[2] - 1)
        if half == 0 or bool((decay_BHS[..., :-half] - decay_BHS[..., half:] <= DECAY).all()):
            return size
    return BLOCKS[-1]


def _blocks(x: Inputs) -> Iterator[Block]:
    queries, keys = x.q.shape[2], x.k.shape[2]
    whole = (None, 0, queries, 0, keys, x.offset)
    rows: list[tuple[Any, ...]] = [whole] if x.segments is None else x.segments.tolist()
    size = _block_size(x.decay)
    query, key = (float(t.norm(dim=-1).amax()) for t in (x.q, x.k))
    # Scores lie within this bound, so that beyond twice of it the decay alone decides.
    vanished = 2 * abs(x.scale) * query * key + VANISHED
    for row, first_query, count, first_key, key_count, offset in rows:
        if not key_count:
            continue
        decay = x.decay[slice(None) if row is None else slice(row, row + 1), :, first_key : first_key + key_count]
        starts = torch.arange(0, count, size)
        own = (starts + offset).clamp(0, key_count - 1)
        # The first key that a head of a block's first query can see; the other queries are further away.
        needed = torch.searchsorted(-decay.contiguous(), -(decay[..., own] + vanished).contiguous()).amin((0, 1))
        for start, skipped in zip(starts.tolist(), needed.tolist(), strict=True):
            stop = min(start + size, count)
            last = min(offset + stop, key_count)
            part = (
                row,
                first_query + start,
                stop - start,
                first_key + skipped,
                last - skipped,
                offset + start - skipped,
            )
            if last > skipped:
                middle = min(max(offset + (start + stop) // 2, 0), key_count - 1)
                yield Block(list(regions_of_segment(part, True, x.window, 0)), first_key + middle)


class _Padded:
    """q, k and v with the channel of the bias. `refer` writes the bias of a block into the keys."""

    def __init__(self, x: Inputs) -> None:
        self.x, self.width = x, x.q.shape[3]
        self.q, self.k, self.v = (F.pad(t, (0, CHANNELS)) for t in x[:3])
        self.q[..., self.width] = 1.0
        self.k[..., self.width + 1] = 1.0  # its product with a zero adds nothing; its gradient is the sum of a row
        self.masks: dict[tuple[Band, tuple[int, int]], Tensor] = {}

    def refer(self, block: Block) -> None:
        first = min(region.keys.start for region in block.regions)
        last = max(region.keys.stop for region in block.regions)
        rows, keys = block.regions[0].rows, slice(first, last)
        bias = self.x.decay[rows, :, block.reference, None] - self.x.decay[rows, :, keys]
        self.k[rows, :, keys, self.width] = (bias / self.x.scale).to(self.k.dtype)

    def mask(self, region: Region) -> Tensor | None:
        if region.band is None:
            return None
        place = region.band, region.shape
        if place not in self.masks:
            visible = region.band.visible(region.shape, self.q.device)
            self.masks[place] = torch.where(visible, 0.0, -math.inf).to(self.q.dtype)
        return self.masks[place]

    def slices(self, region: Region) -> tuple[Tensor, Tensor, Tensor]:
        keys = (region.rows, slice(None), region.keys)
        return self.q[region.rows, :, region.queries], self.k[keys], self.v[keys]


def _forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each denominator: +inf for rows with no visible keys."""
    padded, width = _Padded(x), x.v.shape[3]
    out, log = x.q.new_zeros(*x.q.shape[:3], width), x.q.new_full(x.q.shape[:3], -math.inf)
    for block in _blocks(x):
        if not block.regions:
            continue
        padded.refer(block)
        for region in block.regions:
            where = (region.rows, slice(None), region.queries)
            tensors = padded.slices(region)
            part, part_log = softmax_operators.forward_op(
                *tensors, causal=region.causal, mask=padded.mask(region), scale=x.scale
            )
            part = part[..., :width]
            if len(block.regions) == 1:
                out[where], log[where] = part, part_log
                continue
            joint = torch.logaddexp(log[where], part_log)
            out[where] = out[where] * (log[where] - joint).exp()[..., None] + part * (part_log - joint).exp()[..., None]
            log[where] = joint
    return out, torch.where(log == -math.inf, math.inf, log)


@torch.library.custom_op("keysift::forgetting", mutates_args=(), schema=f"({_INPUTS}) -> (Tensor, Tensor)")
def _forgetting(*inputs: Any) -> tuple[Tensor, Tensor]:
    return _forward(Inputs(*inputs))


@_forgetting.register_fake
def _(*inputs: Any) -> tuple[Tensor, Tensor]:
    x = Inputs(*inputs)
    return x.q.new_empty(*x.q.shape[:3], x.v.shape[3]), x.q.new_empty(x.q.shape[:3])


@torch.library.custom_op(
    "keysift::forgetting_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor out, Tensor log, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _forgetting_backward(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and the decay."""
    x = Inputs(*inputs)
    padded, width = _Padded(x), x.q.shape[3]
    dout, out = (F.pad(t, (0, CHANNELS)) for t in (dout, out))
    dq, dk, dv = (t.new_zeros(t.shape) for t in (padded.q, padded.k, padded.v))
    for block in _blocks(x):
        if not block.regions:
            continue
        padded.refer(block)
        for region in block.regions:
            where = (region.rows, slice(None), region.queries)
            added = softmax_operators.backward_op(
                *(dout[where], *padded.slices(region), out[where], log[where]),
                causal=region.causal,
                mask=padded.mask(region),
                scale=x.scale,
            )
            for total, part, each in zip((dq, dk, dv), (region.queries, region.keys, region.keys), added, strict=True):
                total[region.rows, :, part] += each
    # The gradients of a row's scores sum to zero but for rounding, which C_i must not turn into a gradient.
    ddecay = dk[..., width].double() / -x.scale
    own, seen = own_keys(x.segments, x.offset, x.q, x.k.shape[2])
    row_sums = torch.where(seen, dq[..., width + 1].double() / x.scale, 0.0)
    ddecay.scatter_add_(2, own.expand(row_sums.shape), row_sums)
    return *(t[..., :width].contiguous() for t in (dq, dk, dv)), ddecay


@_forgetting_backward.register_fake
def _(dout: Tensor, out: Tensor, log: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in Inputs(*inputs)[:4])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.constants = inputs[:5], inputs[5:]
    ctx.save_for_backward(*output, *tensors)


def _differentiate(ctx: Any, dout: Tensor, *unused: Tensor) -> tuple[Any, ...]:
    out, log, *tensors = ctx.saved_tensors
    gradients = _forgetting_backward(dout.contiguous(), out, log, *tensors, *ctx.constants)
    return *gradients, None, None, None, None


_forgetting.register_autograd(_differentiate, setup_context=_save)
_forgetting_backward.register_autograd(no_double_backward)
