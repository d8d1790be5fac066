"""ABCDigits: recall the number that was assigned to a letter once (Nakanishi, arXiv:2604.01178v3).

    L=123456        one line; the needle's line occurs at a given depth and again at the end, as question and answer
    ...             every other letter occurs at least once, more often with weights 1, 2, 4, ...

The order of the random calls (sample numbers, shuffle weights, choose lines, shuffle lines; one generator for a whole
set) is the published one, so `texts` equals the output of the author's generator byte for byte.
"""

import random
from collections.abc import Iterator
from string import ascii_uppercase
from typing import NamedTuple

from keysift.core.config import config
from keysift.core.errors import RangeError
from keysift.data.documents import Document
from keysift.data.tokenizers.base import Tokenizer

LETTERS = len(ascii_uppercase)
FEWEST_LINES = 50
MOST_LINES = 10**6  # of a training document, which is generated in memory
MOST_DIGITS = 18  # random.sample counts its population in 64 bits


class Question(NamedTuple):
    prompt: str
    answer: str


def texts(n_lines: int = 64, depth: float = 0.1, n_digits: int = 6, n: int = 1, seed: int = 123) -> list[str]:
    """`n` instances from one generator, as a list; `stream` yields them one by one."""
    return list(stream(n_lines, depth, n_digits, n, seed))


def stream(n_lines: int = 64, depth: float = 0.1, n_digits: int = 6, n: int = 1, seed: int = 123) -> Iterator[str]:
    if n_lines < FEWEST_LINES:
        raise RangeError(f"ABCDigits is defined from {FEWEST_LINES} lines on, got n_lines {n_lines}")
    _check(depth, n_digits)
    rng = random.Random(seed)
    return (_instance(rng, n_lines, depth, n_digits) for _ in range(n))


def question(text: str, n_digits: int = 6) -> Question:
    """Split a text into the prompt and the number at its end."""
    return Question(text[:-n_digits], text[-n_digits:])


def texts_within(
    tokenizer: Tokenizer, budget: int, depth: float = 0.1, n_digits: int = 6, n: int = 1, seed: int = 123
) -> Iterator[str]:
    """Instances with as many lines as fit in `budget` tokens, including the answer."""
    _check(depth, n_digits)
    rng = random.Random(seed)
    return (_fill(rng, tokenizer, budget, depth, n_digits) for _ in range(n))


def _check(depth: float, n_digits: int) -> None:
    if not 0 <= depth <= 1:
        raise RangeError(f"depth is a fraction of the context, from 0 to 1, got {depth:g}")
    if not 2 <= n_digits <= MOST_DIGITS:
        raise RangeError(
            f"{LETTERS} letters need different numbers, so 2 to {MOST_DIGITS} digits, got n_digits {n_digits}"
        )


def _instance(rng: random.Random, n_lines: int, depth: float, n_digits: int, letters: str = ascii_uppercase) -> str:
    numbers = rng.sample(range(10 ** (n_digits - 1), 10**n_digits), len(letters))
    weights = [0] + [2**i for i in range(len(letters) - 1)]
    rng.shuffle(weights)
    lines = [f"{letter}={number}\n" for letter, number in zip(letters, numbers, strict=True)]
    needle = lines[weights.index(0)]
    context = [line for line in lines if line != needle]
    context += rng.choices(lines, weights=weights, k=n_lines - len(letters) - 1)
    rng.shuffle(context)
    context.insert(int(len(context) * depth), needle)
    context.append(needle)
    return "".join(context).rstrip("\n")


def _fill(rng: random.Random, tokenizer: Tokenizer, budget: int, depth: float, n_digits: int) -> str:
    before = rng.getstate()
    n_lines = FEWEST_LINES
    text = _instance(rng, n_lines, depth, n_digits)
    used = len(tokenizer.encode_array(text))
    if used > budget:
        raise RangeError(
            f"the shortest ABCDigits text has {n_lines} lines, {used} tokens of {tokenizer.name}; "
            f"got a budget of {budget}"
        )
    # The number of tokens is nearly linear in the number of lines: secant steps from below, then line by line.
    best, over = (n_lines, text), None
    while over is None or over - best[0] > 1:
        guess = max(best[0] + 1, best[0] * budget // used)
        n_lines = guess if over is None or guess < over else (best[0] + over) // 2
        rng.setstate(before)
        text = _instance(rng, n_lines, depth, n_digits)
        count = len(tokenizer.encode_array(text))
        if count > budget:
            over = n_lines
        else:
            best, used = (n_lines, text), count
    rng.setstate(before)
    return _instance(rng, best[0], depth, n_digits)


@config
class Curriculum:
    """ABCDigits as training text. Letters, lines and depth are drawn for each document."""

    documents: int = 20_000
    """Number of documents."""
    min_letters: int = 4
    max_letters: int = LETTERS
    min_lines: int = 8
    max_lines: int = 28
    """28 lines of 6 digits are 253 bytes with the end token: they fit in a context of 256."""
    n_digits: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if not 2 <= self.min_letters <= self.max_letters <= LETTERS:
            raise RangeError(
                f"abcdigits needs 2 <= min_letters <= max_letters <= {LETTERS}, "
                f"got {self.min_letters} and {self.max_letters}"
            )
        if not self.min_letters < self.min_lines <= self.max_lines <= MOST_LINES:
            raise RangeError(
                f"abcdigits needs min_letters < min_lines <= max_lines <= {MOST_LINES:,}, "
                f"got {self.min_letters}, {self.min_lines} and {self.max_lines}"
            )
        if self.documents < 1:
            raise RangeError(f"abcdigits needs at least one document, got {self.documents}")
        _check(0.0, self.n_digits)

    def document(self, number: int) -> Document:
        """A document, which depends on the seed and its number alone."""
        rng = random.Random(f"{self.seed} {number}")
        n_lines = rng.randint(self.min_lines, self.max_lines)
        # The needle, its question and every other letter need a line each.
        letters = rng.sample(ascii_uppercase, rng.randint(self.min_letters, min(self.max_letters, n_lines - 1)))
        text = _instance(rng, n_lines, rng.random(), self.n_digits, "".join(letters))
        return Document(f"abcdigits/{number}", text + "\n")
