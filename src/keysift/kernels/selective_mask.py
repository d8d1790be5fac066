"""Selective attention (arXiv:2410.02703): a bias that lets a token hide earlier keys from all later queries.

    S_kj = max(0, x_kj)   x the scores of head 0; 0 for the first key, the own key and keys that query k does not see
    F_ij = sum of S_kj over queries k before i
    w_i  = softmax_j(x_ij - F_ij)   in every head of the layer

F adds up over queries, so it is no function of one row of scores and no mechanism of its own. It is a bias, which
`attend` takes for every mechanism whose scores are logits. A decode step has the queries of the new tokens only, and F
needs all: such a call is refused.

Letters: B batch, H heads, G key heads, T tokens, K key width.
"""

import torch
from torch import Tensor

from keysift.core.errors import ShapeError


def selective_mask(q_BHTK: Tensor, k_BGTK: Tensor, *, scale: float | None = None) -> Tensor:
    """The bias -F of a causal layer, B 1 T T in fp32 or wider, for `attend(..., bias=...)`; gradients reach head 0.

    q and k are those of the whole text, one document a row, as `attend` gets them.
    """
    tokens, keys = q_BHTK.shape[2], k_BGTK.shape[2]
    if tokens != keys:
        raise ShapeError(
            f"selective_mask adds up scores over all earlier queries, got {tokens} queries for {keys} keys; pass the "
            f"queries and keys of the whole text, not those of a cached step"
        )
    dtype = torch.promote_types(q_BHTK.dtype, torch.float32)
    q, k = q_BHTK[:, :1].to(dtype), k_BGTK[:, :1].to(dtype)
    scores = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.mT)
    older = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril(-1)
    older[:, :1] = False
    hidden = torch.where(older, scores.relu(), 0.0)
    return hidden - hidden.cumsum(2)
