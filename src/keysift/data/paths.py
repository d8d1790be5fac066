"""Which files a path, a folder or a glob names, each once: links may lead in circles, and not every .gz holds text."""

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
    """The files, and those of a folder that were left out because they are not text."""
    path = Path(spec).expanduser()
    if path.is_dir():
        found = sorted(_inside(path))
        left_out = [file for file in found if not _is_text(file)]
        inside = [file for file in found if file not in set(left_out)]
        if not inside:
            raise DataError(f"folder {path} holds no text; looked for {' '.join(IN_FOLDERS)}, also in .gz")
        return inside, left_out
    if path.is_file():
        return [path], []
    found = sorted(_each_once(file for file in _matching(path) if file.is_file()))
    if not found:
        raise DataError(
            f"no file matches {spec!r}; {nearest(spec, known)}"
            f"give a path, a glob in quotes, or one of {', '.join(known)}"
        )
    return found, []


def _matching(pattern: Path) -> Iterator[Path]:
    """Like the shell: * skips hidden names, ** goes down folders and follows no link, so it ends."""
    fixed = list(takewhile(lambda part: not glob.has_magic(part), pattern.parts))
    rest = pattern.parts[len(fixed) :]
    if not rest:
        return
    for path in Path(*fixed).glob(str(Path(*rest))):
        wild = path.parts[len(fixed) :]
        if not any(name.startswith(".") for name in wild) or any(part.startswith(".") for part in rest):
            yield path


def _inside(folder: Path) -> Iterator[Path]:
    """Files with a suffix of text; hidden folders, runs and built corpora hold none that somebody wrote."""
    return _each_once(_walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    # Links come last, so that what can be reached without one has its own name.
    folders, links, seen = [folder], list[Path](), set()
    while folders or links:
        here = folders.pop() if folders else links.pop(0)
        number = here.stat().st_dev, here.stat().st_ino
        if number in seen:  # a link back up
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


def _each_once(paths: Iterable[Path]) -> Iterator[Path]:
    """A file that several links lead to is one file, by its first name."""
    seen = set()
    for path in sorted(paths):
        number = path.stat().st_dev, path.stat().st_ino
        if number not in seen:
            seen.add(number)
            yield path


def _is_text(path: Path) -> bool:
    """Whether a .gz whose name does not say what is in it begins like text; other names are taken at their word."""
    if path.suffix.lower() != ".gz" or Path(path.stem).suffix.lower() in IN_FOLDERS:
        return True
    try:
        with gzip.open(path) as file:
            begins = file.read(4096)
    except (OSError, EOFError, zlib.error):
        return False
    try:
        begins[:-4].decode() if len(begins) == 4096 else begins.decode()
    except UnicodeDecodeError as error:
        return error.start > len(begins) - 8  # a character that was cut
    return b"\0" not in begins


def kind_of(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        return suffixes[-2] if len(suffixes) > 1 and suffixes[-2] in IN_FOLDERS else ".txt"
    return suffixes[-1] if suffixes else ".txt"
