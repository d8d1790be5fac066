"""A LLaMA-style block: x + attention(norm(x)), then x + SwiGLU(norm(x)).

Letters: B batch, T tokens, D model width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keysift.nn.attention import Attention
from keysift.nn.cache import AttentionContext
from keysift.nn.layer_cache import LayerCache
from keysift.nn.projection import project, projection
from keysift.nn.scalars import MechanismScalars
from keysift.nn.tap import Tap


class SwiGLU(nn.Module):
    """W_down (SiLU(W_gate x) * W_up x), with `inner` hidden channels."""

    def __init__(self, width: int, inner: int, std: float, out_std: float, generator: torch.Generator) -> None:
        super().__init__()
        self.gate_proj = projection(width, inner, std, generator)
        self.up_proj = projection(width, inner, std, generator)
        self.down_proj = projection(inner, width, out_std, generator)
        self.hidden = Tap()

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTX, up_BTX = project(self.gate_proj, x_BTD), project(self.up_proj, x_BTD)
        return project(self.down_proj, self.hidden(F.silu(gate_BTX) * up_BTX))


class Block(nn.Module):
    """Pre-norm Transformer block."""

    def __init__(self, attention: Attention, mlp: SwiGLU, width: int, eps: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=eps)
        self.attention = attention
        self.mlp_norm = nn.RMSNorm(width, eps=eps)
        self.mlp = mlp
        self.stream_in, self.attention_out, self.stream_mid = Tap(), Tap(), Tap()
        self.mlp_out, self.stream = Tap(), Tap()

    @property
    def scalars(self) -> MechanismScalars:
        return self.attention.scalars

    def forward(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache | None) -> Tensor:
        x_BTD = self.stream_in(x_BTD)
        x_BTD = self.stream_mid(
            x_BTD + self.attention_out(self.attention(self.attention_norm(x_BTD), context, layer_cache))
        )
        y_BTD: Tensor = self.stream(x_BTD + self.mlp_out(self.mlp(self.mlp_norm(x_BTD))))
        return y_BTD

    def append(self, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache) -> None:
        """Append the keys and values of tokens to the cache, for tokens whose output is not needed."""
        self.attention.append(self.attention_norm(x_BTD), context, layer_cache)
