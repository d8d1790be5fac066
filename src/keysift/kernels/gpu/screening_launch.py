"""Launches of the screening kernels. Imports triton.

Letters: B batch, H tiles, G kv tiles, T queries, S keys, K key width, V value width.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from keysift.kernels.gpu import configurations, device
from keysift.kernels.gpu.arguments import Rows, Saved, Shape, Tiles, View
from keysift.kernels.gpu.blocks import key_blocks, query_blocks
from keysift.kernels.gpu.configurations import Configuration
from keysift.kernels.gpu.device_code import screening_backward, screening_forward

_KEYS = 256  # keys of a block of `rotated_keys`
_ROWS = 32  # rows of a block of the kernels that read each row once


class Problem(NamedTuple):
    """Inputs of a launch: q B H T K, k B G S K, v B G S V, scalars per tile, positions, and the steps to compute."""

    q: Tensor
    k: Tensor
    v: Tensor
    window: Tensor
    effective_window: Tensor
    acceptance: Tensor
    w_th: float
    segments: Tensor | None
    offset: int
    rotates: bool
    tanh: bool

    @property
    def tiles(self) -> Tiles:
        return Tiles(self.window, self.effective_window, self.acceptance, self.w_th)

    @property
    def pads(self) -> tuple[int, int]:
        pads = configurations.padded(self.q.shape[3], self.v.shape[3])
        assert pads is not None, "declined"
        return pads

    def shape(self, config: Configuration) -> Shape:
        pad_k, pad_v = self.pads
        group = self.q.shape[1] // self.k.shape[1]
        sizes = (self.q.shape[3], self.v.shape[3], pad_k, pad_v, config.queries, config.keys, group)
        steps = (device.precision(self.q), configurations.part(pad_v, self.q.dtype), self.rotates, self.tanh)
        return Shape(*map(device.constant, (*sizes, *steps)))


def lengths(x: Tensor, pad: int) -> Tensor:
    """1 / |x| of the rows of a B H T tensor: fp32, NaN where a row is not finite."""
    b, heads, tokens, width = x.shape
    rows = b * heads * tokens
    out = torch.empty(b, heads, tokens, dtype=torch.float32, device=x.device)
    arguments = (View.of(x), out, rows, heads, tokens, width, pad, _ROWS)
    device.launch(screening_forward.lengths, (-(-rows // _ROWS),), arguments)
    return out


def _rows(p: Problem, q_inverse: Tensor | None) -> Rows:
    """Lengths of keys and values, and the rotated channels of the keys."""
    k_inverse, v_inverse = lengths(p.k, p.pads[0]), lengths(p.v, p.pads[1])
    if not p.rotates:
        return Rows(q_inverse, k_inverse, v_inverse, None)
    b, heads, keys, group = p.k.shape[0], p.q.shape[1], p.k.shape[2], p.q.shape[1] // p.k.shape[1]
    rotated = torch.empty(2, b, heads, keys, dtype=torch.float32, device=p.k.device)
    arguments = (View.of(p.k), k_inverse, p.tiles, rotated, b * heads * keys, heads, keys, group, _KEYS)
    device.launch(screening_forward.rotated_keys, (-(-b * heads * keys // _KEYS),), arguments)
    return Rows(q_inverse, k_inverse, v_inverse, rotated)


def forward(p: Problem, u: Tensor, saved: Saved, processors: int) -> None:
    """Write u, a B H T V view, and the saved tensors. With segments, they must be zero outside of them.

    With fewer programs than processors, the keys of each block of queries are split over several programs.
    """
    b, heads, queries, _ = p.q.shape
    keys, rows = p.k.shape[2], b * heads * queries
    inverse = _rows(p, None)
    config = configurations.forward(*p.pads, p.q.dtype, device.precision(p.q))
    splits = 1
    if _programs(p, config) < processors:
        config = configurations.split_forward(*p.pads, p.q.dtype, device.precision(p.q))
        wanted = 2 * processors // max(_programs(p, config), 1)
        splits = max(1, min(wanted, -(-keys // (2 * config.keys))))
    blocks = query_blocks(p.segments, b, queries, config.queries, p.q.device)
    shape = p.shape(config)
    partial = None
    if splits > 1:
        empty = torch.empty if p.segments is None else torch.zeros
        partial = empty(splits, b, heads, queries, p.v.shape[3], dtype=torch.float32, device=p.q.device)
    views: list[Any] = [View.of(x) for x in (p.q, p.k, p.v, u)]
    arguments = (*views, saved, partial, inverse, p.tiles, blocks.table)
    sizes = (queries, keys, p.offset, blocks.per_row, rows, b * heads * keys)
    grid = (blocks.items, heads, splits)
    device.launch(screening_forward.forward, grid, (*arguments, *sizes, shape), config)
    if partial is not None:
        arguments = (partial, views[3], saved, rows, heads, queries, splits, shape, _ROWS)
        device.launch(screening_forward.combine, (-(-rows // _ROWS), 1, 1), arguments)


class Gradients(NamedTuple):
    """Where a backward pass writes the gradients of q, k and v."""

    q: Tensor
    k: Tensor
    v: Tensor


def backward(p: Problem, du: Tensor, u: Tensor, saved: Saved, gradients: Gradients) -> tuple[Tensor, Tensor, Tensor]:
    """Write the gradients of the tensors. Returns those of window, effective_window and acceptance, fp32.

    With segments, the gradients must be zero outside of them.
    """
    b, heads, queries, _ = p.q.shape
    keys, groups, rows = p.k.shape[2], p.k.shape[1], b * heads * queries
    inverse = _rows(p, lengths(p.q, p.pads[0]))
    rotated = torch.empty(2, b, heads, queries, dtype=torch.float32, device=p.q.device) if p.rotates else None
    config = configurations.backward_queries(*p.pads, p.q.dtype, device.precision(p.q))
    shape = p.shape(config)
    dh = torch.empty(b, heads, queries, p.v.shape[3], dtype=p.q.dtype, device=p.q.device)
    arguments = (View.of(du), View.of(u), saved, dh, rows, heads, queries)
    device.launch(screening_backward.prepare, (-(-rows // _ROWS),), (*arguments, shape, _ROWS))

    qkv: list[Any] = [View.of(x) for x in (p.q, p.k, p.v)]
    dq, dk, dv = (View.of(x) for x in gradients)
    blocks = query_blocks(p.segments, b, queries, config.queries, p.q.device)
    slopes = torch.empty(blocks.items, heads, 3, dtype=torch.float32, device=p.q.device)
    arguments = (*qkv, dh, dq, rotated, slopes, inverse, p.tiles, blocks.table)
    sizes = (queries, keys, p.offset, blocks.per_row, rows, b * heads * keys)
    device.launch(screening_backward.backward_queries, (blocks.items, heads), (*arguments, *sizes, shape), config)

    config = configurations.backward_keys(*p.pads, p.q.dtype, device.precision(p.q))
    blocks = key_blocks(p.segments, b, keys, config.keys, p.q.device)
    sizes_of_keys = (queries, keys, p.offset, blocks.per_row, heads, rows, b * heads * keys)
    arguments = (
        *qkv,
        dh,
        dk,
        dv,
        Rows(inverse.q, None, None, rotated),
        inverse,
        p.tiles,
        blocks.table,
        *sizes_of_keys,
        p.shape(config),
    )
    device.launch(screening_backward.backward_keys, (blocks.items, groups), arguments, config)
    return _scalar_gradients(p, slopes)


def _scalar_gradients(p: Problem, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the scalars from the sums of all blocks, added in fp64 in a fixed order."""
    acceptance, reach, angle = slopes.sum(0, dtype=torch.float64).unbind(1)
    r = p.acceptance.double()
    w = p.window.double().clamp_max(p.w_th)
    turn = math.pi * w / p.w_th
    gamma = (1 + turn.cos()) / 2
    per_position = -math.pi * (turn * turn.sin() / 2 + gamma) / w.square()  # d/dw of the angle pi gamma / w
    dwindow = torch.where(p.window < p.w_th, 2 * angle * per_position / r, 0.0)
    return dwindow.float(), (2 * reach / p.effective_window.double()).float(), (2 * acceptance / r.square()).float()


def _programs(p: Problem, config: Configuration) -> int:
    b, heads, queries, _ = p.q.shape
    return query_blocks(p.segments, b, queries, config.queries, p.q.device).items * heads
