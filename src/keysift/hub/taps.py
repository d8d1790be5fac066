"""`trace` and `edit` for a transformers model, under the addresses our own models have: layers.3.relevance, or
blocks.3.attn.hook_pattern.

    with trace(model, "layers.*.relevance") as seen: model(**tokens)
    with edit(model, {"layers.3.scores": f}): model(**tokens)

Values are those of the model's attention: q, k and v as it gets them, scores after scaling and soft cap and before the
mask, relevance (the weights) and output, B H T V. A trace alone changes no bit of the model's output.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor

from keysift.hub.probe import probed
from keysift.kernels import dense
from keysift.lens.reading import Reading
from keysift.nn.tap import alike, matching

F = TypeVar("F")
Change = Callable[[Tensor], Tensor]
WHAT = ("q", "k", "v", "scores", "relevance", "output")


@dataclass
class _Taps:
    editors: dict[str, list[Change]] = field(default_factory=dict)
    listeners: dict[str, list[Callable[[Tensor], None]]] = field(default_factory=dict)

    def at(self, layer: int, what: str) -> Change:
        name = f"layers.{layer}.attention.{what}"

        def passing(value: Tensor) -> Tensor:
            for change in self.editors.get(name, ()):
                value = change(value)
            for listen in self.listeners.get(name, ()):
                listen(value)
            return value

        return passing

    def visit(self, reading: Reading) -> Tensor | None:
        layer, call = reading.layer, reading.call
        names = [f"layers.{layer}.attention.{what}" for what in WHAT]
        edited = any(self.editors.get(name) for name in names)
        if not edited and not any(self.listeners.get(name) for name in names):
            return None
        q, k, v = (self.at(layer, what)(value) for what, value in (("q", call.q), ("k", call.k), ("v", call.v)))
        out, _ = dense.run(
            replace(call, q=q, k=k, v=v),
            on_scores=lambda x: self.at(layer, "scores")(reading.capped(x)),
            on_weights=self.at(layer, "relevance"),
        )
        out = self.at(layer, "output")(out)
        return out if edited else None


def addresses(model: Any) -> list[str]:
    return [f"layers.{layer}.attention.{what}" for layer in range(model.config.num_hidden_layers) for what in WHAT]


@contextmanager
def trace(model: Any, *patterns: str) -> Iterator[dict[str, Tensor]]:
    """The latest value at every address that matches a pattern; within an `edit`, the edited one."""
    seen: dict[str, Tensor] = {}
    chosen = dict.fromkeys(name for pattern in patterns for name in matching(pattern, addresses(model)))
    with _taps(model) as taps, ExitStack() as taken:
        for name in chosen:
            taken.enter_context(_within(taps.listeners, name, _keep_in(seen, name)))
        yield seen


@contextmanager
def edit(model: Any, changes: Mapping[str, Change]) -> Iterator[None]:
    """Within, what passes an address is replaced by what its function makes of it: the same shape, the same type."""
    chosen = [(name, change) for pattern, change in changes.items() for name in matching(pattern, addresses(model))]
    with _taps(model) as taps, ExitStack() as taken:
        for name, change in chosen:
            taken.enter_context(_within(taps.editors, name, alike(name, change)))
        yield


_open: WeakKeyDictionary[Any, _Taps] = WeakKeyDictionary()


@contextmanager
def _taps(model: Any) -> Iterator[_Taps]:
    """One probe for every trace and edit that is open on a model."""
    if model in _open:
        yield _open[model]
        return
    taps = _open[model] = _Taps()
    try:
        with probed(model, taps.visit, ()):
            yield taps
    finally:
        del _open[model]


@contextmanager
def _within(table: dict[str, list[F]], name: str, function: F) -> Iterator[None]:
    table.setdefault(name, []).append(function)
    try:
        yield
    finally:
        table[name].remove(function)


def _keep_in(seen: dict[str, Tensor], name: str) -> Callable[[Tensor], None]:
    def listen(value: Tensor) -> None:
        seen[name] = value.detach()

    return listen
