"""A Transformer whose heads look back a fixed window, through SDPA: what windows alone bring, without screening.

Queries of one block of `window` tokens see their own block and the one before, masked to the window: exact, and linear
in the length of the text.

Letters: B batch, H heads, N blocks, W window, T tokens, K key width, V value width.
"""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from keysift.core.errors import UnsupportedError
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Mechanism
from keysift.models.language import LanguageModel
from keysift.nn.attention import Attention
from keysift.nn.cache import Reading
from keysift.nn.inference import Inference
from keysift.nn.projection import merge, split
from keysift.nn.read import Look, read
from keysift.nn.store import Store


def windowed(model: LanguageModel, window: int) -> LanguageModel:
    """A copy of a softmax Transformer with the same weights."""
    model = copy.deepcopy(model)
    for layer in model.layers:
        assert isinstance(layer.attention, Attention)
        layer.attention = WindowedAttention(layer.attention, window)
    return model


@dataclass(frozen=True)
class Reach:
    """What a cache asks of a layer: how far back each head looks."""

    window: int
    heads: int
    mechanism: Mechanism = SOFTMAX
    looks_back: bool = False

    def reach(self, inference: Inference) -> list[float]:
        return [float(self.window)] * self.heads


class WindowedAttention(nn.Module):
    """In place of a block's `Attention`, with its projections."""

    def __init__(self, of: Attention, window: int) -> None:
        super().__init__()
        self.of = of
        self.window = window
        self.scalars = Reach(window, of.key_heads)

    def forward(self, x_BTD: Tensor, reading: Reading, store: Store | None) -> Tensor:
        of = self.of
        q = of.turn(split(of.q_proj(x_BTD), of.query_heads), reading)
        k = of.turn(split(of.k_proj(x_BTD), of.key_heads), reading)
        v = split(of.v_proj(x_BTD), of.value_heads)
        if store is None:
            o_BHTV = in_windows(q, k, v, self.window)
        else:
            seen = min(reading.append.before, default=0) if reading.append else 0
            if q.shape[2] > 1 and seen + q.shape[2] > self.window:
                raise UnsupportedError(f"a windowed cache is filled within its {self.window} tokens, then one by one")
            look = Look(of.call, of.scores, of.relevance)
            o_BHTV = read(of.mechanism, q, k, v, {}, reading, store, look)
        y_BTD: Tensor = of.o_proj(merge(o_BHTV))
        return y_BTD


def in_windows(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTV: Tensor, window: int) -> Tensor:
    """Causal softmax attention in which a query sees its own key and the `window` - 1 before it."""
    b, h, tokens, _ = q_BHTK.shape
    blocks = -(-tokens // window)

    def cut(x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, 0, blocks * window - tokens)).reshape(b * h, blocks, window, -1)

    def with_before(x: Tensor) -> Tensor:
        return torch.cat((F.pad(x, (0, 0, 0, 0, 1, 0))[:, :-1], x), dim=2)

    out = F.scaled_dot_product_attention(
        cut(q_BHTK), with_before(cut(k_BHTK)), with_before(cut(v_BHTV)), attn_mask=_mask(blocks, window, q_BHTK.device)
    )
    return out.reshape(b, h, blocks * window, -1)[:, :, :tokens]


def _mask(blocks: int, window: int, device: torch.device) -> Tensor:
    t_W1 = torch.arange(window, device=device)[:, None] + window
    s_S = torch.arange(2 * window, device=device)
    keep_NWS = ((t_W1 - s_S >= 0) & (t_W1 - s_S < window)).repeat(blocks, 1, 1)
    keep_NWS[0] &= s_S >= window  # there is nothing before the first block
    return keep_NWS
