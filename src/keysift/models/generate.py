"""Continue prompts, a batch at a time, from one cache; a row's settings and its answer are its own.

Letters: B batch, T tokens, D model width, N vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self, TypedDict, Unpack

import torch
from torch import Tensor

from keysift.core import memory
from keysift.core.config import config
from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.models.language import LanguageModel
from keysift.models.sample import Sampler
from keysift.models.sampling import SEEDS, Sampling
from keysift.models.text import Decoder, TextStream
from keysift.nn.inference import Inference

Stopped = Literal["length", "end", "stop"]


@config
class Request:
    """A prompt and how it is continued. Requests of one batch may differ in everything."""

    prompt: str | Sequence[int]
    """Text where a tokenizer is at hand (`keysift.open`), else token ids."""
    max_new_tokens: int = 200
    """How many tokens to add at most."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """End before one of these texts."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RangeError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise RangeError(f"stop is a list of texts with at least one character each, got {self.stop!r}")


class Piece(NamedTuple):
    """What one step adds to one row."""

    row: int
    token: int | None
    """None if the model ended the row."""
    text: str
    """Characters that are certain now; empty while one is incomplete or may begin a stop text."""
    stopped: Stopped | None
    """Why the row ended, with its last piece."""


@dataclass
class Row:
    """One continuation as it grows: its tokens, its text where a decoder was given, and why it ended."""

    request: Request
    stream: TextStream | None = None
    tokens: list[int] = field(default_factory=list)
    stopped: Stopped | None = None
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str | None:
        """Up to the stop text, which is not part of it."""
        return None if self.stream is None else "".join(self.texts)

    def rest(self) -> str:
        """What was held back, once no more tokens come."""
        return "" if self.stream is None else self.stream.end()

    def take(self, number: int, token: int, end_id: int | None) -> Piece:
        text = ""
        if token == end_id:
            self.stopped = "end"
        else:
            self.tokens.append(token)
            text = "" if self.stream is None else self.stream.add(token)
            if self.stream is not None and self.stream.stopped:
                self.stopped = "stop"
            elif len(self.tokens) == self.request.max_new_tokens:
                self.stopped = "length"
        if self.stopped in ("end", "length"):
            text += self.rest()
        self.texts.append(text)
        return Piece(number, None if token == end_id else token, text, self.stopped)


class Generation:
    """Requests being answered together: iterate for the pieces as they are made, or `run` to the end.

    inference    the same value an evaluation takes, e.g. window expansion
    end_id       a row ends when it chooses this token, which is not part of its tokens
    decoder      makes text of tokens, `tokenizer.decoder`
    vocab_size   ids from here on are never chosen: the vocabulary of a model may be padded beyond its tokenizer's
    chunk        how many prompt tokens go through the model at once; changes memory and speed, not the result
    """

    def __init__(
        self,
        model: LanguageModel,
        requests: Sequence[Request],
        *,
        inference: Inference | None = None,
        end_id: int | None = None,
        decoder: Callable[[], Decoder] | None = None,
        vocab_size: int | None = None,
        chunk: int = 512,
    ) -> None:
        if not requests or not all(request.prompt for request in requests):
            raise ShapeError(
                "generate needs at least one prompt and one token in each; start from the end token if empty"
            )
        if chunk < 1:
            raise RangeError(f"chunk must be at least 1, got {chunk}")
        for request in requests:
            if isinstance(request.prompt, str):
                raise UnsupportedError("a prompt is a list of token ids here; keysift.open(DIR).generate takes text")
            if request.stop and decoder is None:
                raise UnsupportedError("stop texts are looked for in the text; pass decoder=tokenizer.decoder")
        self.rows = [Row(one, None if decoder is None else _stream(decoder(), one)) for one in requests]
        self.seconds = 0.0
        """From the first prompt token to the last new one."""
        self._model = model
        self._cache = model.cache(len(requests), inference=inference)
        self._refuse_too_long()
        self._end_id = end_id
        self._vocab_size = vocab_size
        self._chunk = chunk
        self._steps = self._run()

    def _refuse_too_long(self) -> None:
        """The keys and values of the longest text must fit in memory; what is computed comes on top."""
        longest = max(len(row.request.prompt) + row.request.max_new_tokens for row in self.rows)
        number = next(self._model.parameters()).element_size()
        widths = (s.mechanism.key_maps * s.site.key_width + s.site.value_width for s in self._model._scalars())
        slots = (store.slots_of(longest) for store in self._cache.stores)
        size = sum(width * held for width, held in zip(widths, slots, strict=True)) * number * len(self.rows)
        memory.need(
            size,
            f"the past of {len(self.rows)} texts of {longest:,} tokens",
            "lower max_new_tokens, or give fewer texts",
        )

    @property
    def tokens_per_second(self) -> float:
        return sum(len(row.tokens) for row in self.rows) / max(self.seconds, 1e-9)

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        began = time.perf_counter()
        try:
            return next(self._steps)
        finally:
            self.seconds += time.perf_counter() - began

    def run(self) -> Self:
        for _ in self:
            pass
        return self

    @torch.no_grad()
    def _run(self) -> Iterator[Piece]:
        model, cache, rows = self._model, self._cache, self.rows
        device = next(model.parameters()).device
        x_BD = self._read_prompts(device)
        occurs_BN = _occurring(rows, model.config.vocab_size, device)
        sampler = Sampler([row.request.sampling for row in rows])
        going = list(range(len(rows)))
        while True:
            next_B = sampler.choose(model.readout(x_BD)[:, : self._vocab_size], occurs_BN[:, : self._vocab_size])
            for number, token in zip(going, next_B.tolist(), strict=True):
                yield rows[number].take(number, token, self._end_id)
            left = [at for at, number in enumerate(going) if rows[number].stopped is None]
            if not left:
                return
            if len(left) < len(going):
                kept = torch.tensor(left)
                going, next_B = [going[at] for at in left], next_B[kept]
                sampler.select(left)
                cache.select(kept.to(device))
                occurs_BN = occurs_BN[kept.to(device)]
            next_B1 = next_B[:, None].to(device)
            occurs_BN.scatter_(1, next_B1, True)
            x_BD = model.hidden(next_B1, cache=cache)[:, -1]

    def _read_prompts(self, device: torch.device) -> Tensor:
        tokens_BT, keep_BT = _left_padded(self.rows, device)
        for first in range(0, tokens_BT.shape[1], self._chunk):
            piece = slice(first, first + self._chunk)
            # Rows that are all real need no mask, and are read faster without.
            keep = None if bool(keep_BT[:, piece].all()) else keep_BT[:, piece]
            x_BTD = self._model.hidden(tokens_BT[:, piece], keep=keep, cache=self._cache)
        return x_BTD[:, -1]


class Settings(TypedDict, total=False):
    """The fields of a Request that several prompts can share."""

    max_new_tokens: int
    sampling: Sampling
    stop: str | Sequence[str]


def requests_of(prompts: Sequence[str | Sequence[int] | Request], **settings: Unpack[Settings]) -> list[Request]:
    """A Request stays as it is; the settings are for bare prompts, of which number b draws with seed + b."""
    stop = settings.get("stop", ())
    settings["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    shared = Request(prompt=(), **settings)  # type: ignore[arg-type]  # stop is a tuple now
    return [
        one
        if isinstance(one, Request)
        else replace(
            shared, prompt=one, sampling=replace(shared.sampling, seed=(shared.sampling.seed + number) % SEEDS)
        )
        for number, one in enumerate(prompts)
    ]


def _stream(decoder: Decoder, request: Request) -> TextStream:
    assert not isinstance(request.prompt, str)
    return TextStream(decoder, request.stop, after=request.prompt)


def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int] | Request],
    *,
    inference: Inference | None = None,
    end_id: int | None = None,
    decoder: Callable[[], Decoder] | None = None,
    chunk: int = 512,
    **settings: Unpack[Settings],
) -> Generation:
    """Continue every prompt, token ids or a Request, to the end; see `Request` and `Generation` for the settings."""
    asked = requests_of(prompts, **settings)
    return Generation(model, asked, inference=inference, end_id=end_id, decoder=decoder, chunk=chunk).run()


def _left_padded(rows: list[Row], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(len(row.request.prompt) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    keep = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        first = longest - len(row.request.prompt)
        tokens[number, first:] = torch.tensor(row.request.prompt)
        keep[number, first:] = True
    return tokens.to(device), keep.to(device)


def _occurring(rows: list[Row], vocab_size: int, device: torch.device) -> Tensor:
    occurs_BN = torch.zeros(len(rows), vocab_size, dtype=torch.bool, device=device)
    for number, row in enumerate(rows):
        occurs_BN[number, torch.tensor(row.request.prompt)] = True
    return occurs_BN
