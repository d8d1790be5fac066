"""RMSNorm of the channels of each head, with a gain for each head and channel.

Letters: B batch, H heads, T tokens, X channels of a head.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class HeadNorm(nn.Module):
    """Norm of B H T X. The gains are one vector of H X numbers, which an optimizer does not take for a matrix."""

    def __init__(self, heads: int, width: int, eps: float) -> None:
        super().__init__()
        self.heads, self.width, self.eps = heads, width, eps
        self.weight = nn.Parameter(torch.ones(heads * width))

    def forward(self, x_BHTX: Tensor) -> Tensor:
        gain_H1X = self.weight.view(self.heads, 1, self.width)
        return F.rms_norm(x_BHTX, (self.width,), eps=self.eps) * gain_H1X
