"""Documents from local files: .txt, .md, .py and other plain text, .jsonl, .parquet; text and .jsonl also in .gz.

A line of .jsonl and a row of .parquet is a document (its `text` field). A text file is a document too, unless it is
long or there are few files: then it is cut at blank lines, so that there are enough documents for a validation set
and no document has to fit in memory twice.
"""

import gzip
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.errors import DataError, UnsupportedError
from keysift.data.documents import Document, text_of
from keysift.data.paths import find, kind_of

FEW = 20
SHORTEST, LONGEST = 2**7, 2**24  # bytes of a section
MAX_RATIO = 200  # of unpacked to packed bytes
FREE_UNPACKED = 2**26  # unpacked bytes that are always allowed
_PIECE = 2**20


class LocalFiles:
    """The files of a path, a folder or a glob, sorted by name."""

    def __init__(self, spec: str, known: list[str] | None = None) -> None:
        self.name = spec
        self.paths, skipped = find(spec, known or [])
        self.sizes = [path.stat().st_size for path in self.paths]
        self.size = sum(self.sizes)
        self.position = 0
        self.notes = [f"skipped {path}: it is compressed and not text" for path in skipped]

    def identity(self) -> dict[str, Any]:
        stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        return {"source": "files", "files": stamps, "section": self.section}

    @property
    def section(self) -> int:
        """Bytes per section of a text file: a twentieth of the text if there are few files, at most 16 MiB."""
        size = self.size // FEW if len(self.paths) < FEW else LONGEST
        return min(max(size, SHORTEST), LONGEST)

    def documents(self) -> Iterator[Document]:
        begins = 0
        for path, size in zip(self.paths, self.sizes, strict=True):
            try:
                for document, position in _read(path, self.section):
                    self.position = begins + position
                    yield document
            except (OSError, EOFError, zlib.error) as error:  # gzip raises all three for damaged files
                raise DataError(f"{path} cannot be read ({error}); repair it or leave it out") from error
            begins += size
            self.position = begins


def _read(path: Path, section: int) -> Iterator[tuple[Document, int]]:
    """Documents, each with the number of bytes of the file read so far."""
    kind = kind_of(path)
    if kind == ".parquet":
        yield from _parquet(path)
        return
    with path.open("rb") as raw:
        file: Any = raw
        if path.suffix.lower() == ".gz":
            file = _Unpacked(path, raw)
            file.read_ahead()
        for document in _jsonl(path, file) if kind == ".jsonl" else _text(path, file, section):
            yield document, raw.tell()


def _refuse_bomb(path: Path, unpacked: int, packed: int, *, whole: bool = False) -> None:
    """Raise DataError for a decompression bomb: text packs ten to one, a bomb a thousand to one.

    `packed` is the number of bytes read so far, or the size of the file if `whole` is set.
    """
    if unpacked > max(MAX_RATIO * packed, FREE_UNPACKED):
        much = f"its {packed:,} bytes unpack to at least" if whole else f"its first {packed:,} bytes unpack to"
        raise DataError(
            f"{path}: {much} {unpacked:,}, more than {MAX_RATIO} times as much; if that is intended, unpack it first"
        )


class _Unpacked(gzip.GzipFile):
    """A .gz file that raises DataError if it unpacks to far too much data."""

    def __init__(self, path: Path, raw: BufferedReader) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._path, self._packed = path, raw

    def read_ahead(self) -> None:
        """Detect a bomb before any text is returned: tokenizing takes a hundred times as long as unpacking."""
        while self.tell() <= FREE_UNPACKED and self.read(_PIECE):
            pass
        self.seek(0)

    def _checked(self, data: bytes) -> bytes:
        _refuse_bomb(self._path, self.tell(), self._packed.tell())
        return data

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        # In pieces: a file may consist of one line.
        line = b""
        while piece := self._checked(super().readline(_PIECE)):
            line += piece
            if line.endswith(b"\n"):
                break
        return line


def _text(path: Path, file: BufferedIOBase, section: int) -> Iterator[Document]:
    held, offset, number = file.read(2 * section), 0, 0
    while len(held) == 2 * section:
        cut = _cut(held, section)
        yield Document(f"{path}#{number}", _decode(path, held[:cut], offset))
        held, offset, number = held[cut:] + file.read(cut), offset + cut, number + 1
    if held:
        yield Document(f"{path}#{number}" if number else str(path), _decode(path, held, offset))


def _cut(data: bytes, section: int) -> int:
    """Position after the last blank line, else line, else character within the first `section` bytes."""
    for mark in (b"\n\n", b"\n"):
        at = data.rfind(mark, section // 2, section)
        if at >= 0:
            return at + len(mark)
    at = section
    while at > section - 4 and data[at] & 0xC0 == 0x80:  # a continuation byte of UTF-8
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
            row = safe_json.loads(line)
        except ValueError as error:
            raise DataError(f"{path} line {number} is not JSON ({error}); write one object per line") from error
        yield Document(f"{path}:{number}", text_of(row, f"{path} line {number}"))


def _parquet(path: Path) -> Iterator[tuple[Document, int]]:
    if find_spec("pyarrow") is None:
        raise UnsupportedError(f"{path} needs pyarrow to be read; run pip install 'keysift[data]'")
    import pyarrow  # an extra
    from pyarrow import parquet

    size = path.stat().st_size
    unpacked = number = 0
    try:
        schema = parquet.read_schema(path)
        if "text" not in schema.names:
            raise DataError(f"{path} has no column 'text', got {', '.join(schema.names)}; rename the column")
        kind = schema.field("text").type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if kind not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
            raise DataError(f"{path} has {kind} in its column 'text', which must be string; convert the column")
        # A dictionary column stores a repeated text once: a few bytes can stand for a million long rows.
        file = parquet.ParquetFile(path, read_dictionary=["text"])
        rows, groups = max(file.metadata.num_rows, 1), range(file.metadata.num_row_groups)
        _refuse_bomb(path, sum(file.metadata.row_group(group).total_byte_size for group in groups), size, whole=True)
        for group in groups:
            # Counted before any text is returned, as in read_ahead.
            for batch in file.iter_batches(row_groups=[group], columns=["text"]):
                unpacked += _text_bytes(batch.column(0))
                _refuse_bomb(path, unpacked, size, whole=True)
            for batch in file.iter_batches(batch_size=1024, row_groups=[group], columns=["text"]):
                for value in batch.column(0):
                    text = text_of({"text": value.as_py()}, f"{path} row {number}")
                    number += 1
                    yield Document(f"{path}:{number - 1}", text), size * number // rows
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a parquet file ({error}); write it again") from error


def _text_bytes(column: Any) -> int:
    """Bytes of all texts in a column, computed without materialising them."""
    import pyarrow
    from pyarrow import compute

    if isinstance(column, pyarrow.DictionaryArray):
        return compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return compute.sum(compute.binary_length(column)).as_py() or 0
