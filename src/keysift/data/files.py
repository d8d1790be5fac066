"""Local files as documents: .txt .md .py and other plain text, .jsonl, .parquet, and any of the first kinds in .gz.

A line of .jsonl and a row of .parquet is a document (its `text` field). So is a text file, unless there are few files
or long ones: then each is cut at blank lines, so that a validation set of whole documents exists and no document
has to fit in memory twice.
"""

import glob
import gzip
import json
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from keysift.core.errors import DataError, UnsupportedError
from keysift.core.registry import nearest
from keysift.data.sources import Document

FEW = 20
SHORTEST, LONGEST = 2**7, 2**24  # bytes of a section
_TEXT = (".txt", ".md", ".py", ".rst", ".tex", ".html", ".c", ".h", ".cpp", ".js", ".ts", ".java", ".go", ".rs")
_IN_FOLDERS = (*_TEXT, ".jsonl", ".parquet")


class LocalFiles:
    """The files a path, a folder or a glob names, in order of their names."""

    def __init__(self, spec: str, known: list[str] | None = None) -> None:
        self.name = spec
        self.paths = _find(spec, known or [])
        self.sizes = [path.stat().st_size for path in self.paths]
        self.size = sum(self.sizes)

    def identity(self) -> dict[str, Any]:
        stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        return {"source": "files", "files": stamps, "section": self.section}

    @property
    def section(self) -> int:
        """Length in bytes from which a text file is cut: a twentieth of few files, at most 16 MiB."""
        wanted = self.size // FEW if len(self.paths) < FEW else LONGEST
        return min(max(wanted, SHORTEST), LONGEST)

    def documents(self) -> Iterator[Document]:
        for path in self.paths:
            try:
                yield from _read(path, self.section)
            except (OSError, EOFError, zlib.error) as error:  # gzip reports damage by all three
                raise DataError(f"{path} cannot be read ({error}); repair it or leave it out") from error


def _find(spec: str, known: list[str]) -> list[Path]:
    path = Path(spec).expanduser()
    if path.is_dir():
        inside = sorted(_inside(path))
        if not inside:
            raise DataError(f"folder {path} holds no text; looked for {' '.join(_IN_FOLDERS)}, also in .gz")
        return inside
    if path.is_file():
        return [path]
    found = sorted(Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file())
    if not found:
        raise DataError(
            f"no file matches {spec!r}; {nearest(spec, known)}"
            f"give a path, a glob in quotes, or one of {', '.join(known)}"
        )
    return found


def _inside(folder: Path) -> Iterator[Path]:
    """Files with a suffix of text; hidden folders, runs and built corpora hold none that somebody wrote."""
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir() and not any((path / name).is_file() for name in ("train.json", "index.json")):
            yield from _inside(path)
        elif path.is_file() and path.suffix and _kind(path) in _IN_FOLDERS:
            yield path


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        return suffixes[-2] if len(suffixes) > 1 and suffixes[-2] in _IN_FOLDERS else ".txt"
    return suffixes[-1] if suffixes else ".txt"


def _read(path: Path, section: int) -> Iterator[Document]:
    kind = _kind(path)
    if kind == ".parquet":
        yield from _parquet(path)
        return
    with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
        yield from _jsonl(path, file) if kind == ".jsonl" else _text(path, file, section)


def _text(path: Path, file: BufferedIOBase, section: int) -> Iterator[Document]:
    held, offset, number = file.read(2 * section), 0, 0
    while len(held) == 2 * section:
        cut = _cut(held, section)
        yield Document(f"{path}#{number}", _decode(path, held[:cut], offset))
        held, offset, number = held[cut:] + file.read(cut), offset + cut, number + 1
    if held:
        yield Document(f"{path}#{number}" if number else str(path), _decode(path, held, offset))


def _cut(data: bytes, section: int) -> int:
    """After the last blank line, else line, else character of the first `section` bytes."""
    for mark in (b"\n\n", b"\n"):
        at = data.rfind(mark, section // 2, section)
        if at >= 0:
            return at + len(mark)
    at = section
    while at > section - 4 and data[at] & 0xC0 == 0x80:  # a byte inside a character of UTF-8
        at -= 1
    return at


def _decode(path: Path, data: bytes, offset: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text: byte {offset + error.start} is 0x{data[error.start]:02x}; "
            f"convert it first, e.g. iconv -t utf-8"
        ) from error


def _jsonl(path: Path, file: BufferedIOBase) -> Iterator[Document]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path} line {number} is not JSON ({error}); write one object a line") from error
        text = row.get("text") if isinstance(row, dict) else None
        if not isinstance(text, str):
            fields = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise DataError(f"{path} line {number} has no field 'text' with a string, got {fields}; rename the field")
        yield Document(f"{path}:{number}", text)


def _parquet(path: Path) -> Iterator[Document]:
    if find_spec("pyarrow") is None:
        raise UnsupportedError(f"{path} needs pyarrow to be read; run pip install 'keysift[data]'")
    import pyarrow  # an extra
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path} is not a parquet file ({error}); write it anew") from error
    if "text" not in file.schema_arrow.names:
        raise DataError(f"{path} has no column 'text', got {', '.join(file.schema_arrow.names)}; rename the column")
    number = 0
    for batch in file.iter_batches(batch_size=1024, columns=["text"]):
        for text in batch.column(0).to_pylist():
            if not isinstance(text, str):
                raise DataError(f"{path} row {number} holds no text but {text!r}; drop the row")
            yield Document(f"{path}:{number}", text)
            number += 1
