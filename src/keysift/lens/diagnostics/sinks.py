"""What a first-token sink does: suppress the head's update, or broadcast one vector (arXiv:2606.08105).

The paper tells the two apart by their traces: a no-op sink has a negligible value, a broadcast sink makes the outputs
of the head nearly the same vector. Its exact limits were not available; those in records/head_kinds.py are ours.

    first_value_norm   |v_0| / mean |v_s| over the other keys
    output_rank        (sum of l)^2 / sum of l^2 for the eigenvalues l of the mean of o o^T over the outputs o of a head

Letters: H heads, T queries, S keys, V value width.
"""

import torch
from torch import Tensor

from keysift.lens.layer_view import Block


class SinkStatistics:
    """Sums over the rows of one layer."""

    def __init__(self, heads: int, width: int) -> None:
        self.gram_HVV = torch.zeros(heads, width, width, dtype=torch.float64)
        self.first_H = torch.zeros(heads, dtype=torch.float64)
        self.others_H = torch.zeros(heads, dtype=torch.float64)

    def add_values(self, values_HSV: Tensor) -> None:
        """The values of one text; the first key is its first."""
        norm_HS = values_HSV.double().norm(dim=-1)
        self.first_H += norm_HS[:, 0]
        self.others_H += norm_HS[:, 1:].mean(1)

    def add_outputs(self, block: Block) -> None:
        out_HTV = (block.weights_HTS @ block.values_HSV).double()
        self.gram_HVV += out_HTV.mT @ out_HTV

    def numbers(self) -> dict[str, Tensor]:
        """The two diagnostics, H each."""
        trace = self.gram_HVV.diagonal(dim1=1, dim2=2).sum(1)
        return {
            "first_value_norm": self.first_H / self.others_H,
            "output_rank": trace.square() / self.gram_HVV.square().sum((1, 2)),
        }
