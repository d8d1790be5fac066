"""Find the text files of a path, a folder or a glob, each once. Handles link cycles and .gz files without text."""

import glob
import gzip
import zlib
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

from keysift.core.errors import DataError
from keysift.core.registry import nearest

_TEXT = (".txt", ".md", ".py", ".rst", ".tex", ".html", ".c", ".h", ".cpp", ".js", ".ts", ".java", ".go", ".rs")
IN_FOLDERS = (*_TEXT, ".jsonl", ".parquet")


def find(spec: str, known: list[str]) -> tuple[list[Path], list[Path]]:
    """The text files, and the files of a folder that were skipped because they are not text."""
    path = Path(spec).expanduser()
    if path.is_dir():
        files = sorted(_inside(path))
        skipped = [file for file in files if not _is_text(file)]
        inside = [file for file in files if file not in set(skipped)]
        if not inside:
            raise DataError(f"folder {path} holds no text; looked for {' '.join(IN_FOLDERS)}, also in .gz")
        return inside, skipped
    if path.is_file():
        return [path], []
    files = sorted(_unique(file for file in _matching(path) if file.is_file()))
    if not files:
        raise DataError(
            f"no file matches {spec!r}; {nearest(spec, known)}"
            f"give a path, a glob in quotes, or one of {', '.join(known)}"
        )
    return files, []


def _matching(pattern: Path) -> Iterator[Path]:
    """Glob like the shell: * skips hidden names, ** follows no links, so it terminates."""
    fixed = list(takewhile(lambda part: not glob.has_magic(part), pattern.parts))
    rest = pattern.parts[len(fixed) :]
    if not rest:
        return
    for path in Path(*fixed).glob(str(Path(*rest))):
        wild = path.parts[len(fixed) :]
        if not any(name.startswith(".") for name in wild) or any(part.startswith(".") for part in rest):
            yield path


def _inside(folder: Path) -> Iterator[Path]:
    """Files with a text suffix, outside of hidden folders, runs and built corpora."""
    return _unique(_walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    # Follow links last, so that a file reachable without a link keeps its own name.
    folders, links, seen = [folder], list[Path](), set()
    while folders or links:
        here = folders.pop() if folders else links.pop(0)
        number = here.stat().st_dev, here.stat().st_ino
        if number in seen:  # a link to a parent folder
            continue
        seen.add(number)
        for path in sorted(here.iterdir()):
            if path.name.startswith("."):
                continue
            if path.is_dir():
                if not any((path / name).is_file() for name in ("train.json", "index.json")):
                    (links if path.is_symlink() else folders).append(path)
            elif path.is_file() and path.suffix and kind_of(path) in IN_FOLDERS:
                yield path


def _unique(paths: Iterable[Path]) -> Iterator[Path]:
    """Each file once, under the first of its names."""
    seen = set()
    for path in sorted(paths):
        number = path.stat().st_dev, path.stat().st_ino
        if number not in seen:
            seen.add(number)
            yield path


def _is_text(path: Path) -> bool:
    """Whether a .gz without an inner suffix starts like text; other suffixes are trusted."""
    if path.suffix.lower() != ".gz" or Path(path.stem).suffix.lower() in IN_FOLDERS:
        return True
    try:
        with gzip.open(path) as file:
            head = file.read(4096)
    except (OSError, EOFError, zlib.error):
        return False
    try:
        head[:-4].decode() if len(head) == 4096 else head.decode()
    except UnicodeDecodeError as error:
        return error.start > len(head) - 8  # a character cut at the end
    return b"\0" not in head


def kind_of(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        return suffixes[-2] if len(suffixes) > 1 and suffixes[-2] in IN_FOLDERS else ".txt"
    return suffixes[-1] if suffixes else ".txt"
