"""Save and load tokenizers.

    load_tokenizer(Path("runs/first")).decode([104, 105]) == "hi"

A tokenizer is stored in a directory as a tokenizer.json with Hugging Face settings. The built-in bytes tokenizer also
writes a marker file, so loading it needs no other package.
"""

from pathlib import Path

from keysift.core import safe_json
from keysift.core.errors import DataError
from keysift.data.tokenizers import symbols
from keysift.data.tokenizers.base import MARKER, Tokenizer
from keysift.data.tokenizers.bytes import Bytes


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Save a tokenizer for `load_tokenizer`."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(path)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer from a directory (a run, a corpus, a Hugging Face model) or from a tokenizer.json."""
    marker = path / MARKER
    if marker.is_file():
        return _marked(marker)
    from keysift.data.tokenizers import bpe

    if path.is_file():
        return bpe.from_file(path)
    if (path / "tokenizer.json").is_file():
        tokenizer = bpe.from_file(path / "tokenizer.json")
        return Bytes() if tokenizer.is_byte_tokenizer and tokenizer.end_id == Bytes.end_id else tokenizer
    for vocabulary, merges in bpe.PAIRS:
        if (path / vocabulary).is_file() and (path / merges).is_file():
            return bpe.from_vocab_and_merges(path / vocabulary, path / merges)
    raise DataError(
        f"{path} holds no tokenizer; expected {MARKER}, tokenizer.json or one of "
        f"{', '.join(' + '.join(pair) for pair in bpe.PAIRS)}; write one with save_tokenizer"
    )


def find_tokenizer(name: str) -> Tokenizer:
    """Find a tokenizer by name: `bytes`, `recall:...` (the symbols of a task), or a path for `load_tokenizer`."""
    if name == Bytes.name:
        return Bytes()
    if name.startswith("recall:"):
        return symbols.named(name)
    if name.startswith("bpe:"):
        raise DataError(
            f"{name!r} is trained on a corpus; pass it to build or prepare, or give the path of a trained one"
        )
    return load_tokenizer(Path(name).expanduser())


def _marked(marker: Path) -> Tokenizer:
    try:
        content = safe_json.load(marker)
    except ValueError as error:
        raise DataError(f"{marker} is not JSON ({error}); write it again with save_tokenizer") from error
    name = content.get("tokenizer") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(name, str) or not (name == Bytes.name or name.startswith("recall:")):
        raise DataError(
            f"{marker} must contain {{'tokenizer': 'bytes'}} or name the symbols of a task, got {content!r}; "
            f"write it again with save_tokenizer"
        )
    return find_tokenizer(name)
