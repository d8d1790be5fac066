"""ABCDigits texts: published reference, token budgets, curriculum, refused arguments."""

import hashlib
import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keysift.core.config import from_dict
from keysift.data import Bytes, find_source
from keysift.data.tasks import abcdigits
from keysift.data.tasks.abcdigits import Curriculum, question, stream, texts, texts_within
from keysift.data.tokenizers import bpe
from tests.refusals import refuses

PUBLISHED = "df002f8b02868be2a94010f44d67a17eaeccae65c0e48898e919e11f2126166e"


def test_the_first_text_is_the_published_one() -> None:
    assert hashlib.sha256(texts()[0].encode()).hexdigest() == PUBLISHED
    assert hashlib.sha256(texts(seed=124)[0].encode()).hexdigest() != PUBLISHED


@settings(max_examples=40)
@given(
    n_lines=st.integers(50, 400),
    depth=st.floats(0, 1),
    n_digits=st.integers(2, 9),
    n=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_texts_match_the_reference(n_lines: int, depth: float, n_digits: int, n: int, seed: int) -> None:
    assert texts(n_lines, depth, n_digits, n, seed) == _reference_texts(n_lines, depth, n_digits, n, seed)


def _reference_texts(n_lines: int, depth: float, n_digits: int, n: int, seed: int) -> list[str]:
    """A second implementation, written from the description in evaluation.md."""
    rng = random.Random(seed)
    expected = []
    for _ in range(n):
        numbers = rng.sample(range(10 ** (n_digits - 1), 10**n_digits), 26)
        number = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", numbers, strict=True))
        weight = [0, *(1 << i for i in range(25))]
        rng.shuffle(weight)
        others = {letter: w for letter, w in zip(number, weight, strict=True) if w}
        (needle,) = set(number) - set(others)
        drawn = list(others) + rng.choices(list(others), weights=list(others.values()), k=n_lines - 27)
        rng.shuffle(drawn)
        at = int(len(drawn) * depth)
        order = [*drawn[:at], needle, *drawn[at:], needle]
        expected.append("\n".join(f"{letter}={number[letter]}" for letter in order))
    return expected


@given(st.integers(50, 200), st.floats(0, 1), st.integers(0, 99))
def test_the_answer_occurs_once_in_the_prompt(n_lines: int, depth: float, seed: int) -> None:
    (text,) = texts(n_lines=n_lines, depth=depth, seed=seed)
    prompt, answer = question(text)
    assert text.count("\n") + 1 == n_lines
    assert prompt.count(answer) == 1
    assert re.fullmatch(r"[A-Z]=", prompt.rsplit("\n", 1)[-1])
    assert prompt + answer == text
    assert prompt[:-2].split("\n").index(f"{prompt[-2]}={answer}") == int((n_lines - 2) * depth)
    assert len(Counter(line[0] for line in text.split("\n"))) == 26


def test_texts_of_a_set_share_a_generator() -> None:
    three = texts(n=3, seed=5)
    assert three[:2] == texts(n=2, seed=5)
    assert len(set(three)) == 3
    assert list(stream(n=3, seed=5)) == three


@pytest.mark.parametrize("budget", [449, 450, 1000, 4096])
def test_a_budget_of_bytes_is_filled(budget: int) -> None:
    within_budget = list(texts_within(Bytes(), budget, n=3, seed=9))
    assert within_budget == texts(n_lines=(budget + 1) // 9, n=3, seed=9)
    assert all(budget - 9 < len(text) <= budget for text in within_budget)


def test_a_budget_applies_to_tokens_of_any_tokenizer() -> None:
    tokenizer = bpe.train(texts(n=20), vocab_size=400)
    for text in texts_within(tokenizer, 1500, depth=0.5, n=3):
        assert len(tokenizer.encode(text)) <= 1500
        assert len(tokenizer.encode(text)) > 1500 - 9


@settings(max_examples=50)
@given(st.data())
def test_the_curriculum_draws_letters_and_lines(data: st.DataObject) -> None:
    low = data.draw(st.integers(2, 26))
    high = data.draw(st.integers(low, 26))
    short = data.draw(st.integers(low + 1, 60))
    curriculum = Curriculum(
        documents=3, min_letters=low, max_letters=high, min_lines=short, max_lines=data.draw(st.integers(short, 80))
    )
    for number in range(3):
        name, text = curriculum.document(number)
        lines = text.rstrip("\n").split("\n")
        assert name == f"abcdigits/{number}"
        assert curriculum.min_lines <= len(lines) <= curriculum.max_lines
        counts = Counter(lines)
        assert low <= len(counts) <= high
        assert len({line[0] for line in lines}) == len(counts)
        assert counts[lines[-1]] == 2
        assert curriculum.document(number).text == text


def test_every_field_of_the_curriculum_matters() -> None:
    default = Curriculum(documents=50)
    default_texts = [document.text for document in map(default.document, range(50))]
    assert len(set(default_texts)) == 50
    for change in (
        {"seed": 1},
        {"n_digits": 3},
        {"min_letters": 7},
        {"max_letters": 5},
        {"min_lines": 20},
        {"max_lines": 9},
    ):
        changed = from_dict(Curriculum, {"documents": 50, **change})
        assert [document.text for document in map(changed.document, range(50))] != default_texts, change


def test_abcdigits_as_a_source() -> None:
    source = find_source("abcdigits:documents=4,seed=7")
    assert [document.text for document in source.documents()] == [
        Curriculum(documents=4, seed=7).document(i).text for i in range(4)
    ]
    assert source.identity() != find_source("abcdigits:documents=4,seed=8").identity()
    with refuses("Curriculum has no field 'letters'"):
        find_source("abcdigits:letters=4")


def test_refusals() -> None:
    with refuses("defined from 50 lines on, got n_lines 49"):
        texts(n_lines=49)
    with refuses("depth is a fraction of the context, from 0 to 1, got 1.5"):
        texts(depth=1.5)
    with refuses("2 to 18 digits, got n_digits 1"):
        texts(n_digits=1)
    with refuses("50 lines, 449 tokens of bytes; got a budget of 448"):
        next(texts_within(Bytes(), 448))
    with refuses("2 <= min_letters <= max_letters <= 26, got 5 and 4"):
        Curriculum(min_letters=5, max_letters=4)
    with refuses("min_letters < min_lines <= max_lines <= 1,000,000, got 4, 4 and 28"):
        Curriculum(min_lines=4)
    with refuses("at least one document, got 0"):
        Curriculum(documents=0)
    assert abcdigits.LETTERS == 26


def test_a_document_has_a_limited_number_of_lines() -> None:
    with refuses("max_lines <= 1,000,000, got 4, 8 and 100000000000"):
        find_source("abcdigits:max_lines=100000000000")
