"""Find a source of documents by a registered name, a path, a glob or `hf:NAME`.

    find_source("stdlib")
    find_source("abcdigits:documents=500,max_lines=32")
    find_source("books/*.txt.gz")

A source can be read repeatedly and returns the same documents in the same order.
"""

import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keysift.core.config import config, from_dict
from keysift.core.errors import DataError
from keysift.core.registry import Registry
from keysift.data.documents import Document, Generated, Source
from keysift.data.files import LocalFiles
from keysift.data.hf import HuggingFace
from keysift.data.options import options
from keysift.data.tasks import abcdigits

SOURCES: Registry[Callable[[str], Source]] = Registry("source")


def find_source(spec: str) -> Source:
    """The source named by `spec`: `NAME`, `NAME:option=value,...`, `hf:DATASET`, or a file, folder or glob."""
    name, _, rest = spec.partition(":")
    if name in SOURCES:
        return SOURCES.find(name)(rest)
    return LocalFiles(spec, known=SOURCES.names())


@config
class StandardLibrary:
    """The .py files of this Python's standard library, without tests and installed packages: about 12 MB."""

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
        # Tests contain deliberately broken files, and many installations lack them.
        skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
        paths = []
        for folder, inside, files in os.walk(self.root):
            inside[:] = [name for name in inside if name not in skipped]
            paths += [Path(folder, name) for name in files if name.endswith(".py")]
        return sorted(paths, key=lambda path: path.relative_to(self.root).as_posix())

    def identity(self) -> dict[str, Any]:
        files = [(path.relative_to(self.root).as_posix(), path.stat().st_size) for path in self.paths()]
        return {"source": self.name, "python": sys.version, "files": files}

    def documents(self) -> Iterator[Document]:
        for path in self.paths():
            try:
                yield Document(f"stdlib/{path.relative_to(self.root).as_posix()}", path.read_bytes().decode())
            except UnicodeDecodeError:
                continue  # some Python versions ship a file in another encoding on purpose


def _stdlib(rest: str) -> Source:
    if rest:
        raise DataError(f"stdlib takes no options, got {rest!r}; write --data stdlib")
    return StandardLibrary()


def _abcdigits(rest: str) -> Source:
    return Generated("abcdigits", from_dict(abcdigits.Curriculum, options(rest)))


def _mqar(rest: str) -> Source:
    from keysift.data.tasks.mqar import Curriculum  # imports torch

    return Generated("mqar", from_dict(Curriculum, options(rest)))


def _recall(rest: str) -> Source:
    raise DataError("recall is generated at each step and cannot be built as a corpus; use keysift train --data recall")


def _hf(rest: str) -> Source:
    return HuggingFace(rest)


SOURCES.add("stdlib", _stdlib)
SOURCES.add("abcdigits", _abcdigits)
SOURCES.add("mqar", _mqar)
SOURCES.add("recall", _recall)
SOURCES.add("hf", _hf)
