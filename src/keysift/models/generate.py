"""Continue prompts, a batch at a time, from one cache.

Letters: B batch, T tokens, N vocabulary.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.models.language import LanguageModel
from keysift.models.sample import Sampling, choose, streams
from keysift.nn.inference import Inference

Stopped = Literal["length", "end", "stop"]
OnToken = Callable[[int, int], None]


@dataclass
class Row:
    """One continuation: its tokens, and why it ended."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    stopped: Stopped = "length"
    text: str | None = None
    """The text before the stop string, where `decode` was given."""


@dataclass(frozen=True)
class Generation:
    """What came out, and how fast: `seconds` runs from the first prompt token to the last new one."""

    rows: list[Row]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(len(row.tokens) for row in self.rows) / max(self.seconds, 1e-9)


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    inference: Inference | None = None,
    end_id: int | None = None,
    stop: Sequence[str] = (),
    decode: Callable[[list[int]], str] | None = None,
    on_token: OnToken | None = None,
    chunk: int = 512,
) -> Generation:
    """Continue every prompt by up to `max_tokens` tokens.

    sampling    how tokens are chosen; by default the most likely one
    inference   the same value an evaluation takes, e.g. window expansion
    end_id      a row ends when it chooses this token, which is not part of its tokens
    stop        a row ends when its text contains one of these; needs `decode`
    on_token    called with (row, token) as each token is chosen; what it raises ends the generation
    chunk       how many prompt tokens go through the model at once; changes memory and speed, not the result
    """
    if not prompts or not all(prompts):
        raise ShapeError("generate needs at least one prompt and one token in each; start from the end token if empty")
    if max_tokens < 1 or chunk < 1:
        raise RangeError(f"max_tokens and chunk must be at least 1, got {max_tokens} and {chunk}")
    if stop and decode is None:
        raise UnsupportedError("stop strings are looked for in the text; pass decode=tokenizer.decode")
    chosen = sampling or Sampling()
    rows = [Row(list(prompt)) for prompt in prompts]
    generators = streams(chosen, len(rows))
    began = time.perf_counter()
    tokens_BT, keep_BT = _left_padded(rows, next(model.parameters()).device)
    cache = model.cache(len(rows), inference=inference)
    going_B = torch.ones(len(rows), dtype=torch.bool, device=tokens_BT.device)
    for first in range(0, tokens_BT.shape[1], chunk):
        piece = slice(first, first + chunk)
        x_BTD = model.hidden(tokens_BT[:, piece], keep=_unless_all(keep_BT[:, piece]), cache=cache)
    occurs_BN = _occurring(rows, model.config.vocab_size, tokens_BT.device)
    for step in range(max_tokens):
        next_B = choose(model.readout(x_BTD[:, -1]), occurs_BN, chosen, generators)
        for number, token in enumerate(next_B.tolist()):
            if going_B[number]:
                going_B[number] = _take(rows[number], number, token, end_id, stop, decode, on_token)
        if not bool(going_B.any()) or step == max_tokens - 1:
            break
        occurs_BN.scatter_(1, next_B[:, None], True)
        x_BTD = model.hidden(next_B[:, None], keep=_unless_all(going_B[:, None]), cache=cache)
    seconds = time.perf_counter() - began
    for row in rows:
        if decode is not None and row.stopped != "stop":
            row.text = decode(row.tokens)
    return Generation(rows, seconds)


def _unless_all(keep_BT: Tensor) -> Tensor | None:
    """Rows that all go on need no mask, and are decoded faster without."""
    return None if bool(keep_BT.all()) else keep_BT


def _take(
    row: Row,
    number: int,
    token: int,
    end_id: int | None,
    stop: Sequence[str],
    decode: Callable[[list[int]], str] | None,
    on_token: OnToken | None,
) -> bool:
    """Add a token to a row; False if that ended it."""
    if token == end_id:
        row.stopped = "end"
        return False
    row.tokens.append(token)
    if stop and decode is not None:
        text = decode(row.tokens)
        cut = min((at for at in map(text.find, stop) if at >= 0), default=None)
        if cut is not None:
            row.text, row.stopped = text[:cut], "stop"
    if on_token is not None:
        on_token(number, token)
    return row.stopped != "stop"


def _left_padded(rows: list[Row], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(len(row.prompt) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    keep = torch.zeros(len(rows), longest, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, longest - len(row.prompt) :] = torch.tensor(row.prompt)
        keep[number, longest - len(row.prompt) :] = True
    return tokens.to(device), keep.to(device)


def _occurring(rows: list[Row], vocab_size: int, device: torch.device) -> Tensor:
    occurs_BN = torch.zeros(len(rows), vocab_size, dtype=torch.bool, device=device)
    for number, row in enumerate(rows):
        occurs_BN[number, row.prompt] = True
    return occurs_BN
