"""Generate continuations of a batch of prompts with one cache. Each row has its own settings and result.

Letters: B batch, T tokens, N vocabulary.
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
from keysift.data.tokenizers.decoder import Decoder
from keysift.models.language_model import LanguageModel
from keysift.models.sampler import Sampler
from keysift.models.sampling_settings import SEEDS, Sampling
from keysift.models.text_stream import TextStream
from keysift.nn.inference import Inference

Stopped = Literal["length", "end", "stop"]


@config
class Request:
    """A prompt and its generation settings. Requests of one batch may have different settings."""

    prompt: str | Sequence[int]
    """Text for a `TextModel` (`keysift.open`), otherwise token ids."""
    max_new_tokens: int = 200
    """Maximum number of tokens to generate."""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """Stop before the first of these texts."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RangeError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise RangeError(f"stop is a list of texts with at least one character each, got {self.stop!r}")


class Piece(NamedTuple):
    """Result of one step for one row."""

    row: int
    token: int | None
    """None if the model generated the end token."""
    text: str
    """New characters; empty while a character is incomplete or may begin a stop text."""
    stopped: Stopped | None
    """Why the row ended; set in its last piece."""


@dataclass
class Row:
    """A growing continuation: its tokens, its text if a decoder was given, and why it ended."""

    request: Request
    stream: TextStream | None = None
    tokens: list[int] = field(default_factory=list)
    stopped: Stopped | None = None
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str | None:
        """The text so far, without the stop text; None without a decoder."""
        return None if self.stream is None else "".join(self.texts)

    def rest(self) -> str:
        """The text held back so far, for the end of the row."""
        return "" if self.stream is None else self.stream.end()

    def take(self, number: int, token: int, end_id: int | None) -> Piece:
        """Append a token; returns the piece of row `number`."""
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
    """A batch of requests: iterate over its pieces as they are generated, or call `run` for the final result.

    inference    inference options, e.g. window expansion
    end_id       this token ends a row and is not part of its tokens
    decoder      makes a decoder from tokens to text, `tokenizer.decoder`
    vocab_size   ids from here on are never generated: a model's vocabulary may be padded beyond its tokenizer's
    chunk        prompt tokens per forward call; changes memory and speed, not the result
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
                "generate needs at least one prompt, and at least one token in each; start an empty prompt with the "
                "end token"
            )
        if chunk < 1:
            raise RangeError(f"chunk must be at least 1, got {chunk}")
        for request in requests:
            if isinstance(request.prompt, str):
                raise UnsupportedError("a prompt must be a list of token ids; keysift.open(DIR).generate takes text")
            if request.stop and decoder is None:
                raise UnsupportedError("stop texts need a decoder; pass decoder=tokenizer.decoder")
        self.rows = [Row(request, None if decoder is None else _stream(decoder(), request)) for request in requests]
        self.seconds = 0.0
        """Time from the first prompt token to the last generated token."""
        self._model = model
        self._cache = model.cache(len(requests), inference=inference)
        self._require_memory()
        self._end_id = end_id
        self._vocab_size = vocab_size
        self._chunk = chunk
        self._steps = self._run()

    def _require_memory(self) -> None:
        """Raise unless the cache of the longest row fits in memory, for all rows; activations are not counted."""
        longest = max(len(row.request.prompt) + row.request.max_new_tokens for row in self.rows)
        bytes_per_number = next(self._model.parameters()).element_size()
        widths = (s.mechanism.key_maps * s.site.key_width + s.site.value_width for s in self._model.layer_scalars())
        entries = (layer_cache.entries_per_row(longest) for layer_cache in self._cache.layers)
        numbers = sum(width * count for width, count in zip(widths, entries, strict=True)) * len(self.rows)
        memory.require(
            numbers * bytes_per_number,
            f"the cache of {len(self.rows)} texts of {longest:,} tokens",
            "lower max_new_tokens, or give fewer texts",
        )

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second, prompts included in the time."""
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
        """Generate until every row has ended."""
        for _ in self:
            pass
        return self

    @torch.no_grad()
    def _run(self) -> Iterator[Piece]:
        model, cache, rows = self._model, self._cache, self.rows
        device = next(model.parameters()).device
        logits_BN = model.readout(self._read_prompts(device))
        occurs_BN = _occurring(rows, model.config.vocab_size, device)
        sampler = Sampler([row.request.sampling for row in rows])
        active = list(range(len(rows)))
        while True:
            next_B = sampler.choose(logits_BN[:, : self._vocab_size], occurs_BN[:, : self._vocab_size])
            for number, token in zip(active, next_B.tolist(), strict=True):
                yield rows[number].take(number, token, self._end_id)
            unfinished = [index for index, number in enumerate(active) if rows[number].stopped is None]
            if not unfinished:
                return
            if len(unfinished) < len(active):
                index = torch.tensor(unfinished)
                active, next_B = [active[i] for i in unfinished], next_B[index]
                sampler.select(unfinished)
                cache.select(index.to(device))
                occurs_BN = occurs_BN[index.to(device)]
            next_B1 = next_B[:, None].to(device)
            if sampler.penalises:
                occurs_BN.scatter_(1, next_B1, True)
            logits_BN = model(next_B1, cache=cache)[:, -1]

    def _read_prompts(self, device: torch.device) -> Tensor:
        tokens_BT, keep_BT = _left_padded(self.rows, device)
        for first in range(0, tokens_BT.shape[1], self._chunk):
            piece = slice(first, first + self._chunk)
            # Without padding no mask is needed, and attention is faster.
            keep = None if bool(keep_BT[:, piece].all()) else keep_BT[:, piece]
            if piece.stop < tokens_BT.shape[1]:
                self._model.fill(tokens_BT[:, piece], keep=keep, cache=self._cache)
            else:
                x_BTD = self._model.hidden(tokens_BT[:, piece], keep=keep, cache=self._cache)
        return x_BTD[:, -1]


class Settings(TypedDict, total=False):
    """Fields of `Request` that apply to all prompts of a call."""

    max_new_tokens: int
    sampling: Sampling
    stop: str | Sequence[str]


def make_requests(prompts: Sequence[str | Sequence[int] | Request], **settings: Unpack[Settings]) -> list[Request]:
    """Requests for prompts with common settings; prompt b uses seed + b. A `Request` keeps its own settings."""
    stop = settings.get("stop", ())
    settings["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    shared = Request(prompt=(), **settings)  # type: ignore[arg-type]  # stop is a tuple now
    return [
        prompt
        if isinstance(prompt, Request)
        else replace(
            shared, prompt=prompt, sampling=replace(shared.sampling, seed=(shared.sampling.seed + number) % SEEDS)
        )
        for number, prompt in enumerate(prompts)
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
    """Continue every prompt (token ids or a Request); see `Request` and `Generation` for the settings."""
    requests = make_requests(prompts, **settings)
    return Generation(model, requests, inference=inference, end_id=end_id, decoder=decoder, chunk=chunk).run()


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
