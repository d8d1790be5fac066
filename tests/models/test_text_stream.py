"""Incremental decoding: whole characters, stop texts, constant cost per token."""

import random

import pytest

from keysift.data.tokenizers.bytes import Bytes
from keysift.models.text_stream import TextStream


def streamed(text: bytes, stop: tuple[str, ...] = ()) -> list[str]:
    """Text available after each byte, and at the end."""
    stream = TextStream(Bytes().decoder(), stop)
    seen = [""]
    for byte in text:
        seen.append(seen[-1] + stream.add(byte))
        if stream.stopped:
            return seen[1:]
    return [*seen[1:], seen[-1] + stream.end()]


def test_incomplete_characters_are_held_back() -> None:
    assert streamed("aé!".encode()) == ["a", "a", "aé", "aé!", "aé!"]
    assert streamed("€".encode()) == ["", "", "€", "€"]
    assert streamed("€".encode()[:2])[-1] == "\ufffd"


def test_invalid_bytes_do_not_block_the_stream() -> None:
    assert streamed(b"\xc3" * 5)[-2:] == ["\ufffd" * 4, "\ufffd" * 5]


def test_start_of_a_stop_text_is_held_back() -> None:
    assert streamed(b"one END", ("END", "xx"))[-1] == "one "
    assert streamed(b"one EN.", ("END",)) == ["o", "on", "one", "one ", "one ", "one ", "one EN.", "one EN."]
    assert streamed(b"one EN", ("END",))[-1] == "one EN"
    assert streamed("aé€b".encode(), ("é€",))[-1] == "a"
    assert streamed(b"a\xffb", ("\ufffdb",))[-1] == "a"


@pytest.mark.parametrize("seed", range(30))
def test_stop_texts_agree_with_a_search_of_the_whole_text(seed: int) -> None:
    """The stop text that is completed first counts; of two that end at the same character, the longer one."""
    rng = random.Random(seed)
    text = "".join(rng.choices("abé", k=40))
    stop = tuple("".join(rng.choices("abé", k=rng.randint(1, 6))) for _ in range(3))
    expected = text
    for end in range(1, len(text) + 1):
        cuts = [end - len(word) for word in stop if text[:end].endswith(word)]
        if cuts:
            expected = text[: min(cuts)]
            break
    assert streamed(text.encode(), stop)[-1] == expected


def test_cost_per_token_is_constant() -> None:
    """Counts the characters that are held back and searched, instead of measuring time."""
    stream = TextStream(Bytes().decoder(), ("aab",))
    for _ in range(5000):
        stream.add(ord("a"))
        assert len(stream._held) <= 2
