"""Any rule, a block of whole rows at a time, in plain torch: memory grows with the keys of a block, not with T x S.

Each block of queries reads all keys it may see at once, so whatever needs the whole row first (a threshold, two
normalisers, a maximum) has it. Nothing of T x S is kept: the backward pass computes each block anew.

    Threshold     tau by Newton's method on the block, from below, instead of sorting every row
    others        the definition as it stands

Letters: B batch, H heads, M maps, T queries, S keys, K key width, V value width.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from keysift.kernels import dense, parts
from keysift.kernels.blockwise import scalar_part
from keysift.kernels.call import Call, may_look, part, transformed
from keysift.mechanisms import entmax
from keysift.mechanisms.rules import Threshold

PAIRS = 1 << 20  # pairs of queries and keys, over all heads, that are computed together: what a cache holds
STEPS = 50


def declines(call: Call, return_weights: bool) -> str | None:
    if return_weights:
        return "it never forms the weights as a whole"
    if transformed():
        return "it computes rows anew in its backward pass, which torch.func cannot transform"
    return None


def run(call: Call) -> tuple[Tensor, None]:
    q, k, v, scalars = dense.prepare(call)
    size = max(PAIRS // max(q.shape[0] * q.shape[1] * k.shape[2], 1), 8)
    done = []
    for rows, keys in parts.blocks(call, size):
        own = {name: scalar_part(call, name, value, rows, keys, None) for name, value in scalars.items()}
        block = (q[:, :, rows], k[:, :, keys], v[:, :, keys])
        done.append(checkpoint(_block, call, rows, keys, own, *block, use_reentrant=False))
    return dense.finish(call.mechanism, torch.cat(done, dim=2), scalars).to(call.v.dtype), None


def _block(
    call: Call, rows: slice, keys: slice, scalars: Mapping[str, Tensor], q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    x = call.scale * (q @ k.mT)
    maps = x.view(x.shape[0], call.heads, -1, *x.shape[2:])
    if call.bias is not None:
        maps = maps + part(call.bias, rows, keys)[:, :, None].to(x.dtype)
    visible = call.visible(rows, keys)
    rule = call.mechanism.rule
    if isinstance(rule, Threshold):
        order = rule.order if isinstance(rule.order, float) else dense.applying(call.mechanism, scalars)(rule.order)
        masked = torch.where(visible.keep_BHTS, maps[:, :, 0], 0.0)
        return entmax.solved(masked, visible.keep_BHTS, order, solve_by_newton) @ v
    return dense.weigh(call.mechanism, maps.unbind(2), visible, scalars) @ v


def solve_by_newton(x: Tensor, keep: Tensor, alpha: Tensor) -> Tensor:
    """The weights for scores whose visible maximum is 0. From tau = -1 on, where the sum is at least 1, Newton's steps
    go up and never past the solution, because the sum is convex in tau; other orders than 2 and 1.5 are bisected."""
    order = float(alpha) if alpha.ndim == 0 and may_look() else None
    if order not in (2.0, 1.5):
        return entmax.solve_by_bisection(x, keep, alpha)
    z = torch.where(keep, x if order == 2 else x / 2, -2.0)
    tau = torch.full_like(z[..., :1], -1.0)
    rounding = 4 * torch.finfo(z.dtype).eps
    for _ in range(STEPS):
        above = (z - tau).clamp_min_(0)
        if order == 2:
            step = (above.sum(-1, keepdim=True) - 1) / (above > 0).sum(-1, keepdim=True).clamp_min(1)
        else:
            slope = above.sum(-1, keepdim=True)
            step = (torch.linalg.vecdot(above, above)[..., None] - 1) / (2 * slope).clamp_min(0.5)
        tau = tau + step.clamp_min(0)
        if not bool((step > rounding).any()):
            break
    above = (z - tau).clamp_min_(0)
    w = above if order == 2 else above.square()
    total = w.sum(-1, keepdim=True)
    return w / torch.where(total > 0, total, 1.0)
