"""A LensModel whose heads are rules: each head is a function from token ids to scores, so it does exactly one thing."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from keysift.data.tokenizers.bytes import Bytes
from keysift.kernels.call import make_call
from keysift.lens.layer_view import LayerView
from keysift.lens.model import Visit, next_tokens
from keysift.mechanisms import find
from keysift.records.lens import ModelInfo

SHARP = 30.0
Rule = Callable[[Tensor], Tensor]  # ids T -> scores T T


def first(ids: Tensor) -> Tensor:
    return SHARP * (torch.arange(len(ids)) == 0).float().expand(len(ids), -1)


def previous(ids: Tensor) -> Tensor:
    at = torch.arange(len(ids))
    return SHARP * (at[:, None] - 1 == at).float()


def own(ids: Tensor) -> Tensor:
    return SHARP * torch.eye(len(ids))


def uniform(ids: Tensor) -> Tensor:
    return torch.zeros(len(ids), len(ids))


def duplicate(ids: Tensor) -> Tensor:
    """The last earlier copy of the token; the first key if there is none."""
    at = torch.arange(len(ids))
    return SHARP * (2 * (ids[:, None] == ids) * (at[:, None] > at) + (at == 0)).float()


def induction(ids: Tensor) -> Tensor:
    """The token after an earlier copy; the first key if there is none."""
    at = torch.arange(len(ids))
    follows = torch.cat((torch.zeros(len(ids), 1, dtype=torch.bool), ids[:, None] == ids[:-1]), dim=1)
    return SHARP * (2 * follows * (at[:, None] >= at) + (at == 0)).float()


def middle(ids: Tensor) -> Tensor:
    """One key that has no name: two tokens back."""
    at = torch.arange(len(ids))
    return SHARP * (at[:, None] - 2 == at).float()


class HandMade:
    """One layer; `values` maps a head to its value vectors, T V (default: one hot by position)."""

    def __init__(
        self, rules: Sequence[Rule], mechanism: str = "softmax", values: dict[int, Rule] | None = None
    ) -> None:
        self.rules, self.mechanism, self.values = rules, find(mechanism), values or {}
        self.info = ModelInfo(
            name="hand made",
            kind="keysift",
            family="rules",
            mechanisms=(mechanism,),
            heads=(len(rules),),
            context=None,
            parameters=0,
            vocabulary=257,
        )

    def encode(self, text: str) -> list[int]:
        return [256, *text.encode()]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [chr(token) if token < 128 else "?" for token in ids]

    def decode(self, ids: Sequence[int]) -> str:
        return Bytes().decode([token for token in ids if token < 256])

    def targets(self, ids: Sequence[int]) -> list[int]:
        return next_tokens(ids)

    def run(self, texts: Sequence[Sequence[int]], visit: Visit) -> list[Tensor]:
        for ids in texts:
            tokens = torch.tensor(ids)
            size = len(ids)
            scores = torch.stack([rule(tokens) for rule in self.rules])[None]
            keys = torch.eye(size).expand(1, len(self.rules), size, size)
            values = torch.stack([self.values.get(head, _one_hot)(tokens) for head in range(len(self.rules))])[None]
            visit(LayerView(0, make_call(self.mechanism, scores, keys, values, scale=1.0), (0,)))
        return [torch.zeros(len(ids), self.info.vocabulary) for ids in texts]


def _one_hot(ids: Tensor) -> Tensor:
    return torch.eye(len(ids), 512)
