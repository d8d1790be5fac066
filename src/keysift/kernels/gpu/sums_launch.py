"""Launches of the kernels for additive mechanisms. Imports triton."""

from typing import Any

import torch
from torch import Tensor

from keysift.kernels.cpu.sums import Inputs
from keysift.kernels.gpu import configurations, device
from keysift.kernels.gpu.arguments import Shape, View
from keysift.kernels.gpu.blocks import key_blocks, query_blocks
from keysift.kernels.gpu.configurations import Configuration
from keysift.kernels.gpu.device_code import sums


def _shape(x: Inputs, config: Configuration) -> Shape:
    group = x.q.shape[1] // x.k.shape[1]
    pads = _pads(x)
    sizes = (x.q.shape[3], x.v.shape[3], *pads, config.queries, config.keys, group)
    steps = (device.precision(x.q), configurations.part(pads[1], x.q.dtype))
    return Shape(*map(device.constant, (*sizes, *steps)))._replace(KIND=device.constant(x.kind))


def _pads(x: Inputs) -> tuple[int, int]:
    pads = configurations.padded(x.q.shape[3], x.v.shape[3])
    assert pads is not None, "declined"
    return pads


def forward(x: Inputs) -> tuple[Tensor, Tensor]:
    """The output and the logarithm of each denominator, fp32. Queries outside every segment get zeros."""
    b, heads, queries, _ = x.q.shape
    new = torch.empty if x.segments is None else torch.zeros
    out = new(b, heads, queries, x.v.shape[3], dtype=torch.float32, device=x.q.device)
    log = new(b, heads, queries, dtype=torch.float32, device=x.q.device)
    config = configurations.forward(*_pads(x), x.q.dtype, device.precision(x.q))
    blocks = query_blocks(x.segments, b, queries, config.queries, x.q.device)
    views: list[Any] = [View.of(t) for t in (x.q, x.k, x.v)]
    sizes = (queries, x.k.shape[2], x.offset, blocks.per_row, x.window)
    arguments = (*views, x.shift, out, log, blocks.table, *sizes, x.scale, x.eps, _shape(x, config))
    device.launch(sums.forward, (blocks.items, heads), arguments, config)
    return out, log


def backward(dout: Tensor, out: Tensor, log: Tensor, x: Inputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and the shift. Rows outside every segment get zeros."""
    b, heads, queries, _ = x.q.shape
    keys, groups = x.k.shape[2], x.k.shape[1]
    new = torch.empty if x.segments is None else torch.zeros
    dq, dk, dv = (new(t.shape, dtype=t.dtype, device=t.device) for t in (x.q, x.k, x.v))
    dshift = new(b, heads, queries, dtype=torch.float32, device=x.q.device)
    dout = dout.float().contiguous()
    delta = (dout * out).sum(-1)
    views: list[Any] = [View.of(t) for t in (x.q, x.k, x.v)]
    shared = (*views, x.shift, dout, log, delta)
    config = configurations.backward_queries(*_pads(x), x.q.dtype, device.precision(x.q))
    blocks = query_blocks(x.segments, b, queries, config.queries, x.q.device)
    sizes = (queries, keys, x.offset, blocks.per_row, x.window)
    arguments = (*shared, View.of(dq), dshift, blocks.table, *sizes, x.scale, _shape(x, config))
    device.launch(sums.backward_queries, (blocks.items, heads), arguments, config)
    config = configurations.backward_keys(*_pads(x), x.q.dtype, device.precision(x.q))
    blocks = key_blocks(x.segments, b, keys, config.keys, x.q.device)
    sizes_of_keys = (queries, keys, x.offset, blocks.per_row, x.window, heads)
    arguments = (*shared, View.of(dk), View.of(dv), blocks.table, *sizes_of_keys, x.scale, _shape(x, config))
    device.launch(sums.backward_keys, (blocks.items, groups), arguments, config)
    return dq, dk, dv, dshift
