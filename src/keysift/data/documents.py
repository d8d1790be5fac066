"""Documents and the interface of the sources they come from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from keysift.core.config import to_dict
from keysift.core.errors import DataError


class Document(NamedTuple):
    name: str
    text: str


class Source(Protocol):
    """A source of documents. Sources with the same `identity` (JSON) have the same documents in the same order.

    size       bytes to read, None if unknown
    position   bytes read so far, None if unknown
    notes      messages to print before reading, such as skipped files
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


class Recipe(Protocol):
    """A config that generates documents by number."""

    @property
    def documents(self) -> int: ...
    def document(self, number: int) -> Document: ...


class Generated:
    """A source of generated documents, identified by its recipe."""

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
    """The `text` field of a row, or DataError."""
    if not isinstance(row, Mapping):
        raise DataError(f'{where} is {type(row).__name__}, not an object; write {{"text": ...}}')
    if "text" not in row:
        raise DataError(f"{where} has no field 'text', got {', '.join(map(str, row))}; rename the field")
    text = row["text"]
    if not isinstance(text, str):
        found = "null" if text is None else f"a {type(text).__name__}"
        raise DataError(f"{where} has {found} for 'text', which must be a string; drop the row")
    return text
