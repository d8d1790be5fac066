"""The tokenizer interface and helpers that tokenizers share."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from keysift.core.errors import DataError
from keysift.data.tokenizers.decoder import Decoder

Ids = npt.NDArray[Any]  # uint16, or uint32 for larger vocabularies

MARKER = "keysift_tokenizer.json"  # file that names the tokenizer in a directory without tokenizer.json
END = "<|endoftext|>"  # the end token in saved files; in a text, this string is encoded as ordinary text


class Tokenizer(Protocol):
    """The tokenizer interface. Tokenizers with the same `hash` produce the same ids for every text."""

    @property
    def name(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def end_id(self) -> int: ...
    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """Ids that precede every text: the BOS token of a pretrained model, or none."""
        ...

    @property
    def hash(self) -> str: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_array(self, text: str) -> Ids:
        """The same ids as `encode`, as an array."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; end tokens are skipped."""
        ...

    def decoder(self) -> Decoder:
        """A streaming decoder: the text of `decode`, token by token."""
        ...

    def save(self, directory: Path) -> None: ...


def utf8(text: str) -> bytes:
    """Encode as UTF-8. Raises DataError for lone surrogates (Python's form of arguments that are not valid UTF-8)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the text is not UTF-8: character {error.start} is {text[error.start]!r}, a lone surrogate; remove it"
        ) from error


def id_type(vocab_size: int) -> type[np.uint16] | type[np.uint32]:
    return np.uint16 if vocab_size <= 2**16 else np.uint32


# keysift's models are not tuned for chats: a chat is their messages, one per line, and the answer continues it.
_CHAT = "{% for message in messages %}{{ message['content'] + '\\n' }}{% endfor %}"


def save_settings(directory: Path, name: str, end: str, end_id: int) -> None:
    """Write tokenizer_config.json and generation_config.json, which transformers reads beside tokenizer.json."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "name": name,
        "eos_token": end,
        "pad_token": end,
        "padding_side": "left",
        "split_special_tokens": True,  # the end token's string is encoded as ordinary text
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": _CHAT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    generation = {"eos_token_id": end_id, "pad_token_id": end_id}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
