"""Where documents come from: a registered name, a path, a glob, or `hf:NAME`.

    find_source("stdlib")
    find_source("abcdigits:documents=500,max_lines=32")
    find_source("books/*.txt.gz")

A source can be read any number of times and gives the same documents in the same order.
"""

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keysift.core.config import config, from_dict, to_dict
from keysift.core.errors import DataError
from keysift.core.registry import Registry
from keysift.data.options import options


class Document(NamedTuple):
    name: str
    text: str


class Source(Protocol):
    """`identity` is JSON: as long as it is the same, so are the documents.

    size       bytes to read, None if unknown
    position   bytes read so far, None where that is the text itself
    notes      what a person should know before it is read, such as files that were left out
    """

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int | None: ...
    @property
    def position(self) -> int | None: ...
    @property
    def notes(self) -> Sequence[str]: ...
    def identity(self) -> dict[str, Any]: ...
    def documents(self) -> Iterator[Document]: ...


GENERATED = ("abcdigits", "mqar")
SOURCES: Registry[Callable[[str], Source]] = Registry("source")


def find_source(spec: str) -> Source:
    """The source `spec` names: `NAME`, `NAME:option=value,...`, `hf:DATASET`, or a file, folder or glob."""
    name, _, rest = spec.partition(":")
    if name in SOURCES:
        return SOURCES.find(name)(rest)
    from keysift.data.files import LocalFiles  # files.py stands on this module

    return LocalFiles(spec, known=SOURCES.names())


@config
class StandardLibrary:
    """The .py files of this Python's standard library, its tests and installed packages left out: about 12 MB."""

    name: str = "stdlib"

    @property
    def position(self) -> None:
        return None

    @property
    def notes(self) -> Sequence[str]:
        return ()

    @property
    def root(self) -> Path:
        return Path(sysconfig.get_paths()["stdlib"])

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.paths())

    def paths(self) -> list[Path]:
        # Tests hold deliberately broken files and tables of cases, and many installations lack them.
        left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
        found = []
        for folder, inside, files in os.walk(self.root):
            inside[:] = [name for name in inside if name not in left_out]
            found += [Path(folder, name) for name in files if name.endswith(".py")]
        return sorted(found, key=lambda path: path.relative_to(self.root).as_posix())

    def identity(self) -> dict[str, Any]:
        files = [(path.relative_to(self.root).as_posix(), path.stat().st_size) for path in self.paths()]
        return {"source": self.name, "python": sys.version, "files": files}

    def documents(self) -> Iterator[Document]:
        for path in self.paths():
            try:
                yield Document(f"stdlib/{path.relative_to(self.root).as_posix()}", path.read_bytes().decode())
            except UnicodeDecodeError:
                continue  # a few versions ship a file in another encoding on purpose


class Recipe(Protocol):
    """A config that makes documents by number."""

    @property
    def documents(self) -> int: ...
    def document(self, number: int) -> Document: ...


class Generated:
    """Documents that are computed: nothing is read, and the recipe is the identity."""

    size = position = None
    notes = ()

    def __init__(self, name: str, recipe: Recipe) -> None:
        self.name = name
        self.recipe = recipe

    def identity(self) -> dict[str, Any]:
        return {"source": self.name, "recipe": to_dict(self.recipe)}

    def documents(self) -> Iterator[Document]:
        return map(self.recipe.document, range(self.recipe.documents))


def text_of(row: Any, where: str) -> str:
    """The `text` field of a row of some table."""
    if not isinstance(row, Mapping):
        raise DataError(f'{where} is {type(row).__name__}, not an object; write {{"text": ...}}')
    if "text" not in row:
        raise DataError(f"{where} has no field 'text', got {', '.join(map(str, row))}; rename the field")
    text = row["text"]
    if not isinstance(text, str):
        found = "null" if text is None else f"a {type(text).__name__}"
        raise DataError(f"{where} has {found} for 'text', which must be a string; drop the row")
    return text


def _stdlib(rest: str) -> Source:
    if rest:
        raise DataError(f"stdlib takes no options, got {rest!r}; write --data stdlib")
    return StandardLibrary()


def _abcdigits(rest: str) -> Source:
    from keysift.data.abcdigits import Curriculum  # it stands on this module

    return Generated("abcdigits", from_dict(Curriculum, options(rest)))


def _mqar(rest: str) -> Source:
    from keysift.data.mqar import Curriculum  # it loads torch

    return Generated("mqar", from_dict(Curriculum, options(rest)))


def _recall(rest: str) -> Source:
    raise DataError("recall is made anew for every step, so no corpus is built of it; keysift train --data recall")


def _hf(rest: str) -> Source:
    from keysift.data.hf import HuggingFace  # it stands on this module

    return HuggingFace(rest)


SOURCES.add("stdlib", _stdlib)
SOURCES.add("abcdigits", _abcdigits)
SOURCES.add("mqar", _mqar)
SOURCES.add("recall", _recall)
SOURCES.add("hf", _hf)
