"""One table of unit rows, read on the way in and on the way out (arXiv:2604.01178v3, equations 1 and 3).

    x_0    = exp(s_E) unit(E[token])
    logits = x (exp(s_F) unit(E))^T

Letters: B batch, T tokens, D model width, N vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keysift.kernels.call import carrier
from keysift.mechanisms.parts import unit
from keysift.nn.projection import fill_normal


class UnitEmbedding(nn.Embedding):
    """Only the direction of a row counts; two learned scalars give the lengths."""

    def __init__(self, vocab_size: int, width: int, generator: torch.Generator | None = None) -> None:
        # Given a table, nn.Embedding draws none of its own.
        super().__init__(vocab_size, width, _weight=torch.empty(vocab_size, width))
        fill_normal(self.weight, 0.1 / math.sqrt(width), generator)
        self.s_E = nn.Parameter(torch.zeros(()))
        self.s_F = nn.Parameter(torch.full((), 0.5 * math.log(width)))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.s_E.exp() * _unit(F.embedding(tokens_BT, self.weight))

    def readout(self, x_BTD: Tensor) -> Tensor:
        return (self.s_F.exp() * x_BTD) @ _unit(self.weight).mT


def _unit(rows: Tensor) -> Tensor:
    return unit(rows.to(carrier(rows))).to(rows.dtype)
