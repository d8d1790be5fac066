"""Local files as documents: .txt .md .py and other plain text, .jsonl, .parquet, and any of the first kinds in .gz.

A line of .jsonl and a row of .parquet is a document (its `text` field). So is a text file, unless there are few files
or long ones: then each is cut at blank lines, so that a validation set of whole documents exists and no document
has to fit in memory twice.
"""

import gzip
import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any

from keysift.core import jsons
from keysift.core.errors import DataError, UnsupportedError
from keysift.data.paths import find, kind_of
from keysift.data.sources import Document, text_of

FEW = 20
SHORTEST, LONGEST = 2**7, 2**24  # bytes of a section
MOST_UNPACKED, FREE_UNPACKED = 200, 2**26  # times the bytes of a .gz that were read, and what is allowed anyway
_PIECE = 2**20


class LocalFiles:
    """The files a path, a folder or a glob names, in order of their names."""

    def __init__(self, spec: str, known: list[str] | None = None) -> None:
        self.name = spec
        self.paths, left_out = find(spec, known or [])
        self.sizes = [path.stat().st_size for path in self.paths]
        self.size = sum(self.sizes)
        self.position = 0
        self.notes = [f"left out {path}: it is compressed, and not text" for path in left_out]

    def identity(self) -> dict[str, Any]:
        stamps = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        return {"source": "files", "files": stamps, "section": self.section}

    @property
    def section(self) -> int:
        """Length in bytes from which a text file is cut: a twentieth of few files, at most 16 MiB."""
        wanted = self.size // FEW if len(self.paths) < FEW else LONGEST
        return min(max(wanted, SHORTEST), LONGEST)

    def documents(self) -> Iterator[Document]:
        begins = 0
        for path, size in zip(self.paths, self.sizes, strict=True):
            try:
                for document, position in _read(path, self.section):
                    self.position = begins + position
                    yield document
            except (OSError, EOFError, zlib.error) as error:  # gzip reports damage by all three
                raise DataError(f"{path} cannot be read ({error}); repair it or leave it out") from error
            begins += size
            self.position = begins


def _read(path: Path, section: int) -> Iterator[tuple[Document, int]]:
    """Documents, and how many bytes of the file had been read when each was whole."""
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
    """Text packs ten to one, a bomb a thousand to one. `packed` is what was read, or if `whole` the file's size."""
    if unpacked > max(MOST_UNPACKED * packed, FREE_UNPACKED):
        much = f"its {packed:,} bytes unpack to at least" if whole else f"its first {packed:,} bytes unpack to"
        raise DataError(
            f"{path}: {much} {unpacked:,}, more than {MOST_UNPACKED} times as much; if that is right, unpack it first"
        )


class _Unpacked(gzip.GzipFile):
    """A .gz that is refused where what was read of it has become absurdly much longer."""

    def __init__(self, path: Path, raw: BufferedReader) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._path, self._packed = path, raw

    def read_ahead(self) -> None:
        """Meet a bomb before any of it is handed on: tokenising takes a hundred times as long as unpacking."""
        while self.tell() <= FREE_UNPACKED and self.read(_PIECE):
            pass
        self.seek(0)

    def _watched(self, data: bytes) -> bytes:
        _refuse_bomb(self._path, self.tell(), self._packed.tell())
        return data

    def read(self, size: int | None = -1) -> bytes:
        return self._watched(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        # In pieces: a line may be all there is.
        line = b""
        while piece := self._watched(super().readline(_PIECE)):
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
            row = jsons.loads(line)
        except ValueError as error:
            raise DataError(f"{path} line {number} is not JSON ({error}); write one object a line") from error
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
            raise DataError(f"{path} has {kind} in its column 'text', which must be string; write it anew")
        # As a dictionary a text that is repeated is held once: a few bytes can stand for a million long rows.
        file = parquet.ParquetFile(path, read_dictionary=["text"])
        rows, groups = max(file.metadata.num_rows, 1), range(file.metadata.num_row_groups)
        _refuse_bomb(path, sum(file.metadata.row_group(group).total_byte_size for group in groups), size, whole=True)
        for group in groups:
            # Counted before any of it is handed on, as in read_ahead.
            for batch in file.iter_batches(row_groups=[group], columns=["text"]):
                unpacked += _letters(batch.column(0))
                _refuse_bomb(path, unpacked, size, whole=True)
            for batch in file.iter_batches(batch_size=1024, row_groups=[group], columns=["text"]):
                for value in batch.column(0):
                    text = text_of({"text": value.as_py()}, f"{path} row {number}")
                    number += 1
                    yield Document(f"{path}:{number - 1}", text), size * number // rows
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a parquet file ({error}); write it anew") from error


def _letters(column: Any) -> int:
    """Bytes of all texts of a column, without making them."""
    import pyarrow
    from pyarrow import compute

    if isinstance(column, pyarrow.DictionaryArray):
        return compute.sum(compute.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return compute.sum(compute.binary_length(column)).as_py() or 0
