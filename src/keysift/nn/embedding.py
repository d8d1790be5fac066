"""Tied embedding with rows normalised to unit length (arXiv:2604.01178v3, equations 1 and 3), and tied readouts.

    x_0    = exp(s_E) unit(E[token])
    logits = x (exp(s_F) unit(E))^T

Letters: B batch, T tokens, D model width, N vocabulary.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from keysift.kernels.cpu.linear import linear
from keysift.kernels.scalars import accumulation_dtype
from keysift.mechanisms.parts import unit
from keysift.nn.projection import fill_normal


class UnitEmbedding(nn.Embedding):
    """Embedding of which only the row directions are used; two learned scalars set the lengths of inputs and outputs.

    Calling it returns plain rows of the table. `scale_inputs` normalises them. So adapters that wrap a table, such as
    LoRA, change rows before the normalisation, and merging an adapter does not change the model.
    """

    def __init__(self, vocab_size: int, width: int, generator: torch.Generator | None = None) -> None:
        # nn.Embedding skips its own random initialisation when it is given a table.
        super().__init__(vocab_size, width, _weight=torch.empty(vocab_size, width))
        fill_normal(self.weight, 0.1 / math.sqrt(width), generator)
        self.s_E = nn.Parameter(torch.zeros(()))
        self.s_F = nn.Parameter(torch.full((), 0.5 * math.log(width)))

    def scale_inputs(self, rows_BTD: Tensor) -> Tensor:
        """Input vectors x_0 of these rows."""
        return self.s_E.exp() * unit_rows(rows_BTD)

    def scale_outputs(self, x_BTD: Tensor) -> Tensor:
        """The last residual stream, scaled for the product with unit rows."""
        return self.s_F.exp() * x_BTD


class TiedHead(nn.Module):
    """Readout of a model with tied embeddings. It has no parameters: `rows` makes its weight N D from the embedding."""

    bias = None

    def __init__(self, rows: Callable[[], Tensor]) -> None:
        super().__init__()
        self._rows = rows

    @property
    def weight(self) -> Tensor:
        return self._rows()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return linear(x_BTD, self.weight)


def unit_rows(rows: Tensor) -> Tensor:
    """Rows of length one, in the dtype of `rows`."""
    return unit(rows.to(accumulation_dtype(rows))).to(rows.dtype)


def table_rows(embedding: nn.Module) -> Tensor:
    """All rows N D of an embedding. A module that wraps a table (an adapter) looks them up itself."""
    if isinstance(embedding, nn.Embedding):
        return embedding.weight
    table = find_table(embedding, nn.Embedding)
    rows: Tensor = embedding(torch.arange(table.num_embeddings, device=table.weight.device))
    return rows


def find_table(embedding: nn.Module, kind: type[nn.Embedding]) -> nn.Embedding:
    """The table of this type that `embedding` is or wraps."""
    return next(module for module in embedding.modules() if isinstance(module, kind))
