"""Incremental decoding gives the same text as decoding all tokens at once, for every kind of tokenizer."""

import random
from collections.abc import Iterable

import pytest
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers

from keysift.data.tokenizers import bpe
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.bytes import Bytes
from keysift.data.tokenizers.decoder import WindowDecoder, byte_letters
from tests.refusals import refuses

TEXT = "One déjà-vu — 日本語 🙂🙂 \N{ZERO WIDTH JOINER} and\nso  on. " * 3


def byte_level() -> bpe.BPE:
    return bpe.train([TEXT], 300)


def with_added_tokens() -> bpe.BPE:
    trained = byte_level()
    trained.engine.add_tokens(["<tool call>", "日本"])
    trained.engine.add_special_tokens(["<|user|>"])
    return bpe.BPE(trained.engine, end=bpe.END, name="added")


def byte_fallback() -> bpe.BPE:
    """A tokenizer like those of Llama and Gemma: ▁ for a space, byte tokens for unknown characters."""
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


def decode_incrementally(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    decoder = tokenizer.decoder()
    return "".join([decoder.add(token) for token in ids] + [decoder.end()])


def test_decoding_restores_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT, "the tokenizer itself must be lossless"
    assert decode_incrementally(tokenizer, ids) == TEXT
    ends = [tokenizer.end_id, *ids[:20], tokenizer.end_id, *ids[20:], tokenizer.end_id]
    assert decode_incrementally(tokenizer, ends) == TEXT


# Not "fallback": how its decoder shows invalid UTF-8 depends on the tokens that follow.
@pytest.mark.parametrize("kind", ["bytes", "byte level", "added"])
def test_random_ids_decode_to_the_same_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(60)]
        assert decode_incrementally(tokenizer, ids) == tokenizer.decode(ids)


def test_invalid_utf8_is_not_withheld() -> None:
    tokenizer = byte_fallback()
    decoder = tokenizer.decoder()
    pieces = [decoder.add(tokenizer.engine.token_to_id("<0xC3>")) for _ in range(100)]
    assert len("".join(pieces)) >= 90


def test_byte_letters_match_the_tokenizers_package() -> None:
    assert sorted(byte_letters()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_letters().values()) == list(range(256))


def test_invalid_text_and_invalid_ids_are_refused(tokenizer: Tokenizer) -> None:
    for encode in (tokenizer.encode, tokenizer.encode_array):
        with refuses("not UTF-8: character 1 is .*a lone surrogate"):
            encode("a\udcff")
    with refuses("ids 0 to"):
        tokenizer.decoder().add(tokenizer.vocab_size)
    with refuses("ids 0 to"):
        tokenizer.decode([-1])


def test_a_token_takes_the_same_work_in_a_long_text() -> None:
    """Counts the tokens that are decoded again for each new token."""
    decoded = []

    def decode(ids: list[int]) -> str:
        decoded.append(len(ids))
        return "".join(map(chr, ids))

    decoder = WindowDecoder(decode, silent=())
    assert "".join(decoder.add(97 + number % 26) for number in range(1000)).startswith("abc")
    assert max(decoded) <= 2
