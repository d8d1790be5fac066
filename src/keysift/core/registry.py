"""Registries of named objects. The error for an unknown name suggests the nearest one."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from keysift.core.errors import ConfigError, UnknownNameError

T = TypeVar("T")
_MOST_LISTED = 12  # names in the message; of a longer list it shows the nearest


def nearest(name: str, known: list[str]) -> str:
    """A suggestion for a mistyped name; empty if no known name is close."""
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? " if close else ""


def nearest_names(name: str, known: Collection[str]) -> list[str]:
    """The five known names nearest to a mistyped one."""
    return get_close_matches(name, known, n=5, cutoff=0.0)


def suggestions(name: str, known: list[str]) -> str:
    """The known names, or the nearest of them if there are many, after the suggestion for a mistyped name."""
    listed = f"known: {', '.join(known)}"
    if len(known) > _MOST_LISTED:
        listed = f"nearest of {len(known)}: {', '.join(nearest_names(name, known))}"
    return nearest(name, known) + listed


class Registry(Generic[T]):
    """An ordered mapping from names to objects of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        if name in self._items:
            raise ConfigError(f"{self.kind} {name!r} is already registered; choose another name")
        self._items[name] = item
        return item

    def remove(self, name: str) -> None:
        self.find(name)
        del self._items[name]

    def find(self, name: str) -> T:
        if name not in self._items:
            raise UnknownNameError(f"no {self.kind} is called {name!r}; {suggestions(name, self.names())}")
        return self._items[name]

    def names(self) -> list[str]:
        return list(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items
