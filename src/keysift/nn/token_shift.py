"""Shift of keys and values towards those of the previous token (FoX Pro, arXiv:2503.02130v2).

    k_t = a_t k~_{t-1} + (1 - a_t) k~_t,   a_t = sigmoid(W x_t),   k~_t = W_K x_t

and the same for values, with a share of their own. A share belongs to a token and a key head. Before the first token of
a text or document, k~ is 0. The shift comes before norms and rotations, so the cache of a layer holds k~ and v~ of
the latest token, beside the shifted keys and values.

Letters: B batch, G key heads, T tokens, D model width, X channels of all key heads.
"""

import torch
from torch import Tensor, nn

from keysift.core.errors import UnsupportedError
from keysift.kernels.scalars import accumulation_dtype
from keysift.nn.cache import AttentionContext
from keysift.nn.layer_cache import LayerCache
from keysift.nn.position import Shift
from keysift.nn.projection import projection


class TokenShift(nn.Module):
    """Shifts the projected keys, values or both of a layer."""

    def __init__(
        self, shift: Shift, width: int, key_heads: int, value_heads: int, std: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        heads = {"k": key_heads if shift in ("keys", "both") else 0, "v": value_heads if shift != "keys" else 0}
        for name, count in heads.items():
            self.register_module(f"{name}_share", projection(width, count, std, generator) if count else None)

    def forward(
        self, x_BTD: Tensor, k_BTX: Tensor, v_BTX: Tensor, context: AttentionContext, layer_cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        """Shifted keys and values. Appends the given ones to `layer_cache`, which then ends with the latest token."""
        now = {"k": k_BTX, "v": v_BTX}
        now = {name: y_BTX for name, y_BTX in now.items() if getattr(self, f"{name}_share") is not None}
        before = _before_each(now, context, layer_cache)
        mixed = {name: self._mix(name, x_BTD, now[name], before[name]) for name in now}
        return mixed.get("k", k_BTX), mixed.get("v", v_BTX)

    def _mix(self, name: str, x_BTD: Tensor, now_BTX: Tensor, before_BTX: Tensor) -> Tensor:
        share_BTG: Tensor = getattr(self, f"{name}_share")(x_BTD)
        share_BTG = share_BTG.to(accumulation_dtype(share_BTG)).sigmoid()
        share_BTX = share_BTG.repeat_interleave(now_BTX.shape[2] // share_BTG.shape[2], dim=2)
        return torch.lerp(now_BTX.to(share_BTX), before_BTX.to(share_BTX), share_BTX).to(now_BTX.dtype)


def _before_each(
    now: dict[str, Tensor], context: AttentionContext, layer_cache: LayerCache | None
) -> dict[str, Tensor]:
    """For each token, the numbers B T X of the token before it; 0 for the first one of a text or document."""
    update = context.update
    if layer_cache is None or update is None:
        first = {name: torch.zeros_like(y_BTX[:, :1]) for name, y_BTX in now.items()}
    else:
        entries = {name: y_BTX[:, None] for name, y_BTX in now.items()}
        latest = layer_cache.latest(update, like=entries)
        first = {name: y_B11X[:, 0].to(now[name].dtype) for name, y_B11X in latest.items()}
        layer_cache.append(entries, update)
    tokens = next(iter(now.values())).shape[1]
    if tokens == 1:
        return first
    extended = {name: torch.cat((first[name], now[name]), dim=1) for name in now}
    positions = context.positions
    if positions.at is None:
        return {name: y_BTX[:, :-1] for name, y_BTX in extended.items()}
    if positions.document is None:
        raise UnsupportedError(
            "this layer mixes keys or values with those of the previous token, and explicit positions do not say which "
            "token that is; use Positions.counted, packed, padded or masked"
        )
    return {name: y_BTX.take_along_dim(_column_before(positions.document), dim=1) for name, y_BTX in extended.items()}


def _column_before(document_B1T: Tensor) -> Tensor:
    """For each token, 1 + the column of the token before it in its document, B T 1; 0 if it is the first one.

    Padding, whose document is negative, is passed over.
    """
    document_BT = document_B1T[:, 0]
    number_BT = torch.arange(1, document_BT.shape[1] + 1, device=document_BT.device).expand_as(document_BT)
    latest_BT = torch.where(document_BT >= 0, number_BT, 0).cummax(1).values
    before_BT = torch.nn.functional.pad(latest_BT[:, :-1], (1, 0))
    same_BT = document_BT.gather(1, (before_BT - 1).clamp_min(0)) == document_BT
    return torch.where(same_BT, before_BT, 0)[..., None]
