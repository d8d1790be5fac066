"""Tokenizers of the `tokenizers` package, mostly byte-pair encodings (BPE), trained here or read from files.

bpe.train(["some text", "more text"], vocab_size=512)
bpe.from_file(Path("gpt2/tokenizer.json"))
bpe.from_vocab_and_merges(Path("encoder.json"), Path("vocab.bpe"))
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Engine
from tokenizers import decoders, models, pre_tokenizers, trainers

from keysift.core import safe_json
from keysift.core.errors import DataError, RangeError
from keysift.data.tokenizers.base import END, Ids, id_type, save_settings, utf8
from keysift.data.tokenizers.decoder import Decoder, Utf8Decoder, WindowDecoder, byte_letters, token_bytes

# Vocabulary and merges of GPT-2: file names used by OpenAI and by Hugging Face.
PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
_COMMON_END_TOKENS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
_PIECE_CHARACTERS = 2**16
_SAFE_SPLIT = re.compile(r"(?<=\S\n)(?=\S)")


class BPE:
    """A tokenizer of the `tokenizers` package. Text that spells a special token stays text."""

    def __init__(self, engine: Engine, *, end: str, name: str) -> None:
        end_id = engine.token_to_id(end)
        if end_id is None:
            raise DataError(f"the vocabulary of {name} has no end token {end!r}; choose one of its tokens")
        engine.encode_special_tokens = True
        engine.no_padding()
        engine.no_truncation()
        self.engine = engine
        self.end = end
        self.end_id: int = end_id
        self.name = name
        self.vocab_size: int = max(engine.get_vocab().values()) + 1
        self.prefix_ids = _prefix_ids(engine)
        self._dtype = id_type(self.vocab_size)
        state = json.loads(engine.to_str())
        self._splits_at_newlines = _splits_at_newlines(state)
        self._special_ids = {token["id"] for token in state["added_tokens"] if token["special"]} | {end_id}
        self._is_byte_level = (state.get("decoder") or {}).get("type") == "ByteLevel"
        model = state["model"]
        self.is_byte_tokenizer = (
            model.get("vocab") == byte_letters() and not model["merges"] and not state["normalizer"]
        )
        """Whether every token is one byte. This is how transformers saves the bytes tokenizer."""

    @property
    def hash(self) -> str:
        prefix = f" after {self.prefix_ids}" if self.prefix_ids else ""
        return hashlib.sha256(f"{self.end_id}{prefix}\n{self.engine.to_str()}".encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return list(self.engine.encode(utf8(text).decode(), add_special_tokens=False).ids)

    def encode_array(self, text: str) -> Ids:
        utf8(text)
        pieces = list(_pieces(text)) if self._splits_at_newlines else [text]
        encoded = self.engine.encode_batch_fast(pieces, add_special_tokens=False)
        return np.concatenate([np.array(piece.ids, self._dtype) for piece in encoded])

    def decode(self, ids: Sequence[int]) -> str:
        for token in ids:
            self._check(token)
        return str(self.engine.decode([i for i in ids if i != self.end_id], skip_special_tokens=True))

    def decoder(self) -> Decoder:
        return Utf8Decoder(self._bytes_of) if self._is_byte_level else WindowDecoder(self.decode, self._special_ids)

    def _bytes_of(self, token: int) -> bytes:
        self._check(token)
        piece = self.engine.id_to_token(token)  # None for a gap in the vocabulary
        return b"" if piece is None or token in self._special_ids else token_bytes(piece)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise RangeError(
                f"{self.name} has ids 0 to {self.vocab_size - 1}, got {token}; use the model's own tokenizer"
            )

    def save(self, directory: Path) -> None:
        (directory / "tokenizer.json").write_text(self.engine.to_str(pretty=False), encoding="utf-8")
        save_settings(directory, self.name, self.end, self.end_id)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling the engine itself would lose encode_special_tokens.
        return _rebuild, (self.engine.to_str(), self.end, self.name)


def train(texts: Iterable[str], vocab_size: int) -> BPE:
    """Train a byte-level BPE like GPT-2's. The last id is the end token."""
    if not 257 <= vocab_size <= 2**32:
        raise RangeError(
            f"a byte-level BPE needs 256 bytes and an end token, and ids have 32 bits; got vocab_size {vocab_size}, "
            f"pass 257 to 2**32"
        )
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    engine.train_from_iterator(texts, trainer)
    engine.add_special_tokens([END])
    return BPE(engine, end=END, name=f"bpe:{vocab_size}")


def from_file(path: Path) -> BPE:
    """Load a tokenizer.json. Its end token is eos_token in tokenizer_config.json, or else a common name."""
    try:
        engine = Engine.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise DataError(f"{path} is not a tokenizer.json ({error}); save one with the tokenizers package") from error
    settings = _settings(path.parent / "tokenizer_config.json")
    end = settings.get("eos_token")
    if isinstance(end, dict):
        end = end.get("content")
    if end is None:
        end = next((name for name in _COMMON_END_TOKENS if engine.token_to_id(name) is not None), END)
    if not isinstance(end, str):
        raise DataError(f"eos_token in {path.parent / 'tokenizer_config.json'} is {end!r}, not a token; repair it")
    return BPE(engine, end=end, name=str(settings.get("name") or path.parent.name))


def from_vocab_and_merges(vocabulary: Path, merges: Path) -> BPE:
    """Load a vocabulary and a merges file, the two files of the original GPT-2."""
    try:
        engine = Engine(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:
        raise DataError(f"{vocabulary} and {merges} are not a BPE ({error}); use the published files") from error
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    if engine.token_to_id(END) is not None:
        engine.add_special_tokens([END])
    return BPE(engine, end=END, name=vocabulary.parent.name)


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = safe_json.load(path)
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); repair or remove it") from error
    return settings if isinstance(settings, dict) else {}


def _prefix_ids(engine: Engine) -> tuple[int, ...]:
    """Special tokens that the engine adds before every text, such as Llama's <s>."""
    for text in ("a", *engine.get_vocab()):
        bare, full = (engine.encode(text, add_special_tokens=special).ids for special in (False, True))
        if bare:  # a small vocabulary may not contain "a"
            return tuple(full[: next(at for at in range(len(full)) if full[at : at + len(bare)] == bare)])
    return ()


def _rebuild(state: str, end: str, name: str) -> BPE:
    return BPE(Engine.from_str(state), end=end, name=name)


def _splits_at_newlines(state: dict[str, Any]) -> bool:
    """Whether text can be split after a single newline without changing its ids.

    True only for GPT-2's pre-tokenizer, for which this is known.
    """
    words = state.get("pre_tokenizer") or {}
    is_gpt2 = words.get("type") == "ByteLevel" and words.get("use_regex", True) and not words.get("add_prefix_space")
    all_special = all(token.get("special") for token in state.get("added_tokens", ()))
    return bool(is_gpt2 and all_special and state.get("normalizer") is None)


def _pieces(text: str) -> Iterator[str]:
    """Split a long document, because an Encoding object takes about 100 bytes per token."""
    start = 0
    while len(text) - start > 2 * _PIECE_CHARACTERS:
        cut = _SAFE_SPLIT.search(text, start + _PIECE_CHARACTERS)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
