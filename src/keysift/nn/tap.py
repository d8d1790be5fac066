"""Named places to look into a model: a `Tap` is an identity whose address is its place in the module tree.

    with trace(model, "layers.*.relevance") as seen:
        model(tokens_BT)
    seen["layers.2.tiles.relevance"]        # B H T S, exact zeros included

A value that is costly to make asks `tap.watched` first, so an unused tap costs nothing. The names are an interface:
tests/golden/taps.txt lists them.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase

from torch import Tensor, nn

from keysift.core.errors import UnknownNameError
from keysift.core.registry import nearest


class Tap(nn.Module):
    """The identity, and whoever listens hears what passed."""

    def __init__(self) -> None:
        super().__init__()
        self._listeners: list[Callable[[Tensor], None]] = []

    @property
    def watched(self) -> bool:
        return bool(self._listeners)

    @contextmanager
    def listening(self, listener: Callable[[Tensor], None]) -> Iterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def forward(self, value: Tensor) -> Tensor:
        for listener in self._listeners:
            listener(value)
        return value


def taps(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model by its address."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


@contextmanager
def trace(
    model: nn.Module, *patterns: str, keeping: Callable[[Tensor], Tensor] = lambda value: value
) -> Iterator[dict[str, Tensor]]:
    """What passes the taps whose address matches a pattern (* matches anything, dots too): the latest value of each, or
    of it what `keeping` makes of it, where the whole would be too large to hold for every tap."""
    known = taps(model)
    seen: dict[str, Tensor] = {}
    chosen: list[str] = []
    for pattern in patterns:
        matching = [name for name in known if fnmatchcase(name, pattern)]
        if not matching:
            raise UnknownNameError(
                f"no tap matches {pattern!r}; {nearest(pattern, list(known))}taps: {', '.join(known)}"
            )
        chosen += [name for name in matching if name not in chosen]
    with ExitStack() as listening:
        for name in chosen:
            listening.enter_context(known[name].listening(_keep_in(seen, name, keeping)))
        yield seen


def _keep_in(seen: dict[str, Tensor], name: str, keeping: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    def listen(value: Tensor) -> None:
        seen[name] = keeping(value.detach())

    return listen
