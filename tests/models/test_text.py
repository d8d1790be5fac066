"""Text as its tokens come: no half characters, nothing that may begin a stop text, the same work for every token."""

import random

import pytest

from keysift.data.tokenizer import Bytes
from keysift.models.text import TextStream


def streamed(text: bytes, stop: tuple[str, ...] = ()) -> list[str]:
    """What can be shown after each byte, and at the end."""
    stream = TextStream(Bytes().decoder(), stop)
    seen = [""]
    for byte in text:
        seen.append(seen[-1] + stream.add(byte))
        if stream.stopped:
            return seen[1:]
    return [*seen[1:], seen[-1] + stream.end()]


def test_no_half_characters_are_given() -> None:
    assert streamed("aé!".encode()) == ["a", "a", "aé", "aé!", "aé!"]
    assert streamed("€".encode()) == ["", "", "€", "€"]
    assert streamed("€".encode()[:2])[-1] == "\ufffd"


def test_bytes_that_are_no_text_do_not_hold_the_stream_back() -> None:
    assert streamed(b"\xc3" * 5)[-2:] == ["\ufffd" * 4, "\ufffd" * 5]


def test_the_beginning_of_a_stop_text_is_held_back() -> None:
    assert streamed(b"one END", ("END", "xx"))[-1] == "one "
    assert streamed(b"one EN.", ("END",)) == ["o", "on", "one", "one ", "one ", "one ", "one EN.", "one EN."]
    assert streamed(b"one EN", ("END",))[-1] == "one EN"
    assert streamed("aé€b".encode(), ("é€",))[-1] == "a"
    assert streamed(b"a\xffb", ("\ufffdb",))[-1] == "a"


@pytest.mark.parametrize("seed", range(30))
def test_stop_texts_are_found_where_a_search_of_the_whole_text_finds_them(seed: int) -> None:
    """The first that is complete, letter by letter; of two that end together, the longer."""
    rng = random.Random(seed)
    text = "".join(rng.choices("abé", k=40))
    stop = tuple("".join(rng.choices("abé", k=rng.randint(1, 6))) for _ in range(3))
    expected = text
    for end in range(1, len(text) + 1):
        cuts = [end - len(one) for one in stop if text[:end].endswith(one)]
        if cuts:
            expected = text[: min(cuts)]
            break
    assert streamed(text.encode(), stop)[-1] == expected


def test_a_token_costs_the_same_however_long_the_text_is() -> None:
    """Counted, not timed: the characters that pass through the search."""
    stream = TextStream(Bytes().decoder(), ("aab",))
    for _ in range(5000):
        stream.add(ord("a"))
        assert len(stream._held) <= 2
