"""The interface of a causal language model that the lens inspects, and tokenized texts to run through it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from keysift.core.errors import DataError
from keysift.data.batches import IGNORE
from keysift.lens.layer_view import LayerView
from keysift.records.lens import ModelInfo

# Called with each layer. A returned tensor, B H T V, replaces the output of the layer's attention.
Visit = Callable[[LayerView], Tensor | None]
Progress = Callable[[str, int, int], None]  # task, steps done, steps in total


class LensModel(Protocol):
    """A model with its tokenizer: tokens in, logits out, and a call to a visitor for every attention layer."""

    info: ModelInfo

    def encode(self, text: str) -> list[int]: ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, for display. `ids` are consecutive tokens of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of consecutive tokens, without special tokens."""
        ...

    def targets(self, ids: Sequence[int]) -> list[int]:
        """The target of each token: usually the next token; IGNORE where there is none."""
        ...

    def run(self, texts: Sequence[Sequence[int]], visit: Visit) -> list[Tensor]:
        """Return the logits of each text, T x vocabulary. Texts are padded on the left to one batch."""
        ...


def token_pieces(decode: Callable[[list[int]], str], ids: Sequence[int]) -> list[str]:
    """The text of each of consecutive tokens, leading spaces included.

    SentencePiece tokenizers drop the leading space of the first token that they decode, so every token is decoded after
    the token before it.
    """
    pieces = [decode([token]) for token in ids[:1]]
    for before, token in pairwise(ids):
        pair, first = decode([before, token]), decode([before])
        pieces.append(pair[len(first) :] if pair.startswith(first) else decode([token]))
    return pieces


def no_progress(task: str, done: int, total: int) -> None:
    """The default `progress`: reports nothing."""


def ignore_layer(view: LayerView) -> None:
    """A visitor that does nothing."""


def next_tokens(ids: Sequence[int]) -> list[int]:
    """Targets of plain language modelling: the next token, and none for the last."""
    return [*ids[1:], IGNORE]


def losses(model: LensModel, logits: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> list[float]:
    """Mean loss of each text, in nats per target."""
    return [
        float(torch.nn.functional.cross_entropy(text_logits.float(), torch.tensor(model.targets(ids))))
        for text_logits, ids in zip(logits, texts, strict=True)
    ]


def bits_per_byte(model: LensModel, ids: Sequence[int], loss: float) -> float | None:
    """The loss of a text in bits per byte. None if not every token has a target, or if the text has no bytes."""
    if model.targets(ids) != next_tokens(ids):
        return None
    scored = len(model.decode(ids).encode()) - len(model.decode(ids[:1]).encode())
    return loss * (len(ids) - 1) / math.log(2) / scored if scored > 0 else None


@dataclass(frozen=True)
class TextSet:
    """Tokenized texts that a model reads, `batch` at a time."""

    model: LensModel
    texts: Sequence[Sequence[int]]
    batch: int = 1

    def beginnings(self, tokens: int) -> "TextSet":
        """The first `tokens` tokens of each text."""
        return TextSet(self.model, [ids[:tokens] for ids in self.texts], self.batch)

    def batches(self) -> Iterator[Sequence[Sequence[int]]]:
        for start in range(0, len(self.texts), self.batch):
            yield self.texts[start : start + self.batch]

    def visit_layers(self, visit: Visit) -> None:
        """Call `visit` with every layer of every batch."""
        for texts in self.batches():
            self.model.run(texts, visit)

    def loss(self, visit: Visit = ignore_layer) -> float:
        """Mean of the texts' losses, in nats per token."""
        values = [loss for texts in self.batches() for loss in losses(self.model, self.model.run(texts, visit), texts)]
        return sum(values) / len(values)


def pad(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Tokens B T padded with 0 on the left, a mask of the real tokens, and the padding of each text."""
    longest = max(len(ids) for ids in texts)
    padding = tuple(longest - len(ids) for ids in texts)
    tokens = torch.tensor([[0] * lead + list(ids) for lead, ids in zip(padding, texts, strict=True)])
    keep = torch.arange(longest)[None] >= torch.tensor(padding)[:, None]
    return tokens, keep, padding


def encode_text(model: LensModel, name: str, text: str, limit: int | None) -> list[int]:
    """The first `limit` token ids of a text. Raises DataError if the text is too short or too long for the model."""
    ids = model.encode(text)
    if limit is not None:
        ids = ids[:limit]
    if len(ids) < 2:
        raise DataError(f"{name} has {len(ids)} token(s); attention and loss need at least 2, give a longer text")
    context = model.info.context
    if context is not None and len(ids) > context:
        raise DataError(
            f"{name} has {len(ids)} tokens, {model.info.name} reads at most {context}; "
            f"shorten it, or pass --tokens {context} to read its beginning"
        )
    return ids
