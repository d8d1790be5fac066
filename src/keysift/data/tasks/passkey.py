"""Passkey: a number stated once among filler sentences, with a question at the end.

    A passkey is hidden in the text that follows. Find it and remember it.
    <filler> ... The passkey is 48213. Remember it: 48213 is the passkey. ... <filler>
    What is the passkey? The passkey is 48213

An instance depends on its seed and number alone.
"""

import random

from keysift.core.errors import RangeError
from keysift.data.tasks.abcdigits import Question
from keysift.data.tokenizers.base import Tokenizer

INTRODUCTION = "A passkey is hidden in the text that follows. Find it and remember it.\n"
FILLER = "The grass is green. The sky is blue. The sun is bright. Here we go. There and back again.\n"
NEEDLE = "The passkey is {0}. Remember it: {0} is the passkey.\n"
QUESTION = "What is the passkey? The passkey is "


def instance(n_fillers: int, depth: float, *, digits: int = 5, seed: int = 0, number: int = 0) -> Question:
    """A question whose needle follows int(n_fillers * depth) filler sentences."""
    if n_fillers < 0 or digits < 1:
        raise RangeError(f"passkey needs n_fillers >= 0 and digits >= 1, got {n_fillers} and {digits}")
    if not 0 <= depth <= 1:
        raise RangeError(f"depth is a fraction of the context, from 0 to 1, got {depth:g}")
    key = random.Random(f"passkey {seed} {number}").randrange(10 ** (digits - 1), 10**digits)
    before = int(n_fillers * depth)
    text = INTRODUCTION + FILLER * before + NEEDLE.format(key) + FILLER * (n_fillers - before) + QUESTION
    return Question(text, str(key))


def within(
    tokenizer: Tokenizer, budget: int, depth: float, *, digits: int = 5, seed: int = 0, number: int = 0
) -> Question:
    """A question with as many filler sentences as fit in `budget` tokens, including the answer."""

    def used(n_fillers: int) -> int:
        question = instance(n_fillers, depth, digits=digits, seed=seed, number=number)
        return len(tokenizer.encode_array(question.prompt + question.answer))

    if used(0) > budget:
        raise RangeError(
            f"the shortest passkey text has {used(0)} tokens of {tokenizer.name}, got a budget of {budget}"
        )
    low, high = 0, max(1, budget // len(tokenizer.encode_array(FILLER)) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if used(middle) <= budget else (low, middle)
    return instance(low, depth, digits=digits, seed=seed, number=number)
