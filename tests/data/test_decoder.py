"""Decoding token by token gives what decoding all at once gives, for every kind of tokenizer."""

import random
from collections.abc import Iterable

import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers

from keysift.data import bpe
from keysift.data.decoder import WindowDecoder, byte_letters
from keysift.data.tokenizer import Bytes, Tokenizer
from tests.refusals import refuses

TEXT = "One déjà-vu — 日本語 🙂🙂 \N{ZERO WIDTH JOINER} and\nso  on. " * 3


def byte_level() -> bpe.BPE:
    return bpe.train([TEXT], 300)


def with_added_tokens() -> bpe.BPE:
    found = byte_level()
    found.engine.add_tokens(["<tool call>", "日本"])
    found.engine.add_special_tokens(["<|user|>"])
    return bpe.BPE(found.engine, end=bpe.END, name="added")


def byte_fallback() -> bpe.BPE:
    """As Llama and Gemma spell: ▁ for a blank, unknown characters byte by byte."""
    words = ["▁", "▁One", "▁and", "so", "on", ".", "\n", "vu", "é"]
    pieces = [bpe.END, *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    engine = Engine(models.BPE({piece: at for at, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token=None))
    engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    engine.decoder = decoders.Sequence(steps)
    engine.add_special_tokens([bpe.END])
    return bpe.BPE(engine, end=bpe.END, name="fallback")


KINDS = {"bytes": Bytes, "byte level": byte_level, "added": with_added_tokens, "fallback": byte_fallback}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return KINDS[request.param]()


def one_by_one(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    decoder = tokenizer.decoder()
    return "".join([decoder.add(token) for token in ids] + [decoder.end()])


def test_a_text_comes_back(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT, "the tokenizer of this test loses text"
    assert one_by_one(tokenizer, ids) == TEXT
    ends = [tokenizer.end_id, *ids[:20], tokenizer.end_id, *ids[20:], tokenizer.end_id]
    assert one_by_one(tokenizer, ends) == TEXT


# Not "fallback": its decoder spells bytes that are no text one way or the other, depending on what follows.
@pytest.mark.parametrize("kind", ["bytes", "byte level", "added"])
def test_any_ids_give_what_decode_gives(kind: str) -> None:
    tokenizer = KINDS[kind]()
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(60)]
        assert one_by_one(tokenizer, ids) == tokenizer.decode(ids)


def test_bytes_that_never_become_text_are_given_soon() -> None:
    tokenizer = byte_fallback()
    decoder = tokenizer.decoder()
    given = [decoder.add(tokenizer.engine.token_to_id("<0xC3>")) for _ in range(100)]
    assert len("".join(given)) >= 90


def test_letters_of_bytes_are_those_of_the_tokenizers_package() -> None:
    assert sorted(byte_letters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_letters().values()) == list(range(256))


def test_text_that_is_no_utf8_and_ids_that_are_no_tokens_are_refused(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_array):
        with refuses("not UTF-8: character 1 is .*half of a surrogate pair"):
            encode("a\udcff")
    with refuses("ids 0 to"):
        tokenizer.decoder().add(tokenizer.vocab_size)
    with refuses("ids 0 to"):
        tokenizer.decode([-1])


def test_a_token_is_the_same_work_however_long_the_text_is() -> None:
    """Counted, not timed: the tokens that are decoded for one."""
    decoded = []

    def decode(ids: list[int]) -> str:
        decoded.append(len(ids))
        return "".join(map(chr, ids))

    decoder = WindowDecoder(decode, silent=())
    assert "".join(decoder.add(97 + number % 26) for number in range(1000)).startswith("abc")
    assert max(decoded) <= 2
