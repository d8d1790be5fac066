"""Byte-pair encodings through the `tokenizers` package: trained here, or read from files.

bpe.train(["some text", "more text"], vocab_size=512)
bpe.from_file(Path("gpt2/tokenizer.json"))
bpe.from_pair(Path("encoder.json"), Path("vocab.bpe"))
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

from keysift.core import jsons
from keysift.core.errors import DataError, RangeError
from keysift.data.decoder import Decoder, Utf8Decoder, WindowDecoder, byte_letters, spelled_in_letters
from keysift.data.tokenizer import END, Ids, id_type, save_settings, utf8

# GPT-2 as OpenAI published it, and the names Hugging Face gave the same two files.
PAIRS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
_KNOWN_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
_PIECE = 2**16
_SAFE_CUT = re.compile(r"(?<=\S\n)(?=\S)")


class BPE:
    """A tokenizer of the `tokenizers` package. Text that spells a special token stays text."""

    def __init__(self, engine: Engine, *, end: str, name: str) -> None:
        end_id = engine.token_to_id(end)
        if end_id is None:
            raise DataError(f"the vocabulary of {name} has no {end!r} to end documents with; name a token it has")
        engine.encode_special_tokens = True
        engine.no_padding()
        engine.no_truncation()
        self.engine = engine
        self.end = end
        self.end_id: int = end_id
        self.name = name
        self.vocab_size: int = max(engine.get_vocab().values()) + 1
        self.begin = _begin(engine)
        self._dtype = id_type(self.vocab_size)
        state = json.loads(engine.to_str())
        self._cuttable = _cuttable(state)
        self._silent = {token["id"] for token in state["added_tokens"] if token["special"]} | {end_id}
        self._bytes = (state.get("decoder") or {}).get("type") == "ByteLevel"
        model = state["model"]
        self.merges_nothing = model.get("vocab") == byte_letters() and not model["merges"] and not state["normalizer"]
        """Whether every token is one byte: the built-in tokenizer, as transformers saves it."""

    @property
    def hash(self) -> str:
        begins = f" after {self.begin}" if self.begin else ""
        return hashlib.sha256(f"{self.end_id}{begins}\n{self.engine.to_str()}".encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        return list(self.engine.encode(utf8(text).decode(), add_special_tokens=False).ids)

    def encode_array(self, text: str) -> Ids:
        utf8(text)
        pieces = list(_pieces(text)) if self._cuttable else [text]
        encoded = self.engine.encode_batch_fast(pieces, add_special_tokens=False)
        return np.concatenate([np.array(one.ids, self._dtype) for one in encoded])

    def decode(self, ids: Sequence[int]) -> str:
        for token in ids:
            self._check(token)
        return str(self.engine.decode([i for i in ids if i != self.end_id], skip_special_tokens=True))

    def decoder(self) -> Decoder:
        return Utf8Decoder(self._spelled) if self._bytes else WindowDecoder(self.decode, self._silent)

    def _spelled(self, token: int) -> bytes:
        self._check(token)
        letters = self.engine.id_to_token(token)  # None for a gap in the vocabulary
        return b"" if letters is None or token in self._silent else spelled_in_letters(letters)

    def _check(self, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise RangeError(f"{self.name} has ids 0 to {self.vocab_size - 1}, got {token}; use the model's own")

    def save(self, directory: Path) -> None:
        (directory / "tokenizer.json").write_text(self.engine.to_str(pretty=False))
        save_settings(directory, self.name, self.end, self.end_id)

    def __reduce__(self) -> tuple[Any, ...]:
        # The engine's own pickling forgets that special tokens are to be read as text.
        return _rebuild, (self.engine.to_str(), self.end, self.name)


def train(texts: Iterable[str], vocab_size: int) -> BPE:
    """A byte-level BPE in the manner of GPT-2, learned from `texts`; the last id ends documents."""
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
    """A tokenizer.json; the end token is the one tokenizer_config.json beside it names, else a usual name it has."""
    try:
        engine = Engine.from_file(str(path))
    except Exception as error:  # the package raises Exception itself
        raise DataError(f"{path} is not a tokenizer.json ({error}); save one with the tokenizers package") from error
    settings = _settings(path.parent / "tokenizer_config.json")
    end = settings.get("eos_token")
    if isinstance(end, dict):
        end = end.get("content")
    if end is None:
        end = next((known for known in _KNOWN_ENDS if engine.token_to_id(known) is not None), END)
    return BPE(engine, end=end, name=str(settings.get("name") or path.parent.name))


def from_pair(vocabulary: Path, merges: Path) -> BPE:
    """The two files GPT-2 was published as."""
    try:
        engine = Engine(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:
        raise DataError(f"{vocabulary} and {merges} are not a BPE ({error}); use the pair as published") from error
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    if engine.token_to_id(END) is not None:
        engine.add_special_tokens([END])
    return BPE(engine, end=END, name=vocabulary.parent.name)


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = jsons.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); repair or remove it") from error
    return settings if isinstance(settings, dict) else {}


def _begin(engine: Engine) -> tuple[int, ...]:
    """What the engine itself puts before a text."""
    for text in ("a", *engine.get_vocab()):
        bare, whole = (engine.encode(text, add_special_tokens=special).ids for special in (False, True))
        if bare:  # a small vocabulary may not even spell an "a"
            return tuple(whole[: next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)])
    return ()


def _rebuild(state: str, end: str, name: str) -> BPE:
    return BPE(Engine.from_str(state), end=end, name=name)


def _cuttable(state: dict[str, Any]) -> bool:
    """Whether cutting after a lone newline cannot change the ids: true of GPT-2's word pattern, not known of others."""
    words = state.get("pre_tokenizer") or {}
    plain = words.get("type") == "ByteLevel" and words.get("use_regex", True) and not words.get("add_prefix_space")
    special = all(token.get("special") for token in state.get("added_tokens", ()))
    return bool(plain and special and state.get("normalizer") is None)


def _pieces(text: str) -> Iterator[str]:
    """An encoding keeps a hundred bytes for each token, so a long document is encoded piece by piece."""
    start = 0
    while len(text) - start > 2 * _PIECE:
        cut = _SAFE_CUT.search(text, start + _PIECE)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
