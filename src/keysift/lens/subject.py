"""A causal language model as the lens sees it: tokens in, logits out, each attention layer shown to a visitor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from keysift.core.errors import DataError
from keysift.lens.reading import Reading
from keysift.lens.record import About

# Looks at a layer; what it returns, if not None, is put out in place of the layer's own output, B H T V.
Visit = Callable[[Reading], Tensor | None]


Progress = Callable[[str, int, int], None]  # what, done, of
NOTHING = -100  # the target cross_entropy leaves out


def silent(what: str, done: int, total: int) -> None:
    """For callers that do not want to know how far the work is."""


class Subject(Protocol):
    about: About

    def encode(self, text: str) -> list[int]: ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, for display."""
        ...

    def targets(self, ids: Sequence[int]) -> list[int]:
        """What each token is to predict: as a rule the next one; NOTHING where no answer is asked."""
        ...

    def run(self, texts: Sequence[Sequence[int]], visit: Visit) -> list[Tensor]:
        """Logits T x vocabulary of each text; texts of one batch are padded on the left."""
        ...


def next_tokens(ids: Sequence[int]) -> list[int]:
    return [*ids[1:], NOTHING]


def losses(subject: Subject, logits: Sequence[Tensor], texts: Sequence[Sequence[int]]) -> list[float]:
    """Mean loss of each text, in nats per token that is to be predicted."""
    return [
        float(torch.nn.functional.cross_entropy(found.float(), torch.tensor(subject.targets(ids))))
        for found, ids in zip(logits, texts, strict=True)
    ]


def look_away(reading: Reading) -> None:
    """A visitor that sees nothing and changes nothing."""


@dataclass(frozen=True)
class Sample:
    """Texts as tokens that a model reads, `batch` of them at a time."""

    subject: Subject
    texts: Sequence[Sequence[int]]
    batch: int = 1

    def beginnings(self, tokens: int) -> "Sample":
        return Sample(self.subject, [ids[:tokens] for ids in self.texts], self.batch)

    def batches(self) -> Iterator[Sequence[Sequence[int]]]:
        for start in range(0, len(self.texts), self.batch):
            yield self.texts[start : start + self.batch]

    def show(self, visit: Visit) -> None:
        """Every layer of every batch."""
        for texts in self.batches():
            self.subject.run(texts, visit)

    def loss(self, visit: Visit = look_away) -> float:
        """Mean of the texts' losses, in nats per token."""
        found = [
            loss for texts in self.batches() for loss in losses(self.subject, self.subject.run(texts, visit), texts)
        ]
        return sum(found) / len(found)


def pad(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Tokens B T padded with 0 on the left, which of them are real, and how much padding each text got."""
    longest = max(len(ids) for ids in texts)
    padding = tuple(longest - len(ids) for ids in texts)
    tokens = torch.tensor([[0] * lead + list(ids) for lead, ids in zip(padding, texts, strict=True)])
    keep = torch.arange(longest)[None] >= torch.tensor(padding)[:, None]
    return tokens, keep, padding


def checked(subject: Subject, name: str, text: str, limit: int | None) -> list[int]:
    """Token ids of a text the model can take, or one clear line."""
    ids = subject.encode(text)
    if limit is not None:
        ids = ids[:limit]
    if len(ids) < 2:
        raise DataError(f"{name} has {len(ids)} token(s); attention and loss need at least 2, give a longer text")
    context = subject.about.context
    if context is not None and len(ids) > context:
        raise DataError(
            f"{name} has {len(ids)} tokens, {subject.about.name} reads at most {context}; "
            f"shorten it, or pass --tokens {context} to read its beginning"
        )
    return ids
