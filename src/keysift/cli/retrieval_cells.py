"""Cells of a retrieval grid kept as they are finished, so that an interrupted grid resumes."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keysift.core import jsons
from keysift.core.config import from_dict, to_dict
from keysift.evaluate.measured import Cell


class Kept:
    """In `folder`, or nowhere. `asked` is what a cell depends on besides its own fields: the model and the seed."""

    def __init__(self, folder: Path | None, name: str, asked: Mapping[str, Any]) -> None:
        self._path = None if folder is None else folder / f"{name}-cells.jsonl"
        self._asked = asked

    def cells(self) -> Iterator[Cell]:
        """What earlier calls finished; a line that was cut short is left out."""
        if self._path is None or not self._path.is_file():
            return
        for line in self._path.read_text().splitlines():
            try:
                told = jsons.loads(line)
                if told["asked"] == self._asked:
                    yield from_dict(Cell, told["cell"])
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, cell: Cell) -> None:
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps({"asked": self._asked, "cell": to_dict(cell)}) + "\n")
