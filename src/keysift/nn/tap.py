"""Named places to look into a model, and to change what passes: a `Tap` is an identity with an address.

    with trace(model, "layers.*.relevance") as seen:
        model(tokens_BT)
    seen["layers.2.tiles.relevance"]        # B H T S, exact zeros included

    with edit(model, {"layers.3.relevance": lambda w_BHTS: w_BHTS.clamp_max(0.5)}):
        model(tokens_BT)

An address is a tap's place in the module tree; the module between layer and tap may be left out, and TransformerLens'
names serve as well (blocks.3.attn.hook_pattern, or blocks.3.attn.pattern). A value that is costly to make asks
`tap.watched` first, so an unused tap costs nothing. The names are an interface: tests/golden/taps.txt lists them.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from torch import Tensor, nn

from keysift.core.errors import ShapeError, UnknownNameError
from keysift.core.registry import nearest
from keysift.kernels.call import Call

V = TypeVar("V")


class Passage(nn.Module, Generic[V]):
    """The identity, unless somebody edits what passes; listeners hear the result."""

    def __init__(self) -> None:
        super().__init__()
        self._editors: list[Callable[[V], V]] = []
        self._listeners: list[Callable[[V], None]] = []

    @property
    def watched(self) -> bool:
        return bool(self._listeners or self._editors)

    @contextmanager
    def listening(self, listener: Callable[[V], None]) -> Iterator[None]:
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def editing(self, editor: Callable[[V], V]) -> Iterator[None]:
        self._editors.append(editor)
        try:
            yield
        finally:
            self._editors.remove(editor)

    def forward(self, value: V) -> V:
        for editor in self._editors:
            value = editor(value)
        for listener in self._listeners:
            listener(value)
        return value


class Tap(Passage[Tensor]):
    """Where a tensor passes."""


class CallTap(Passage[Call]):
    """Where a layer hands q, k, v, scalars and positions to the kernels: an edit may change any of them, the mechanism
    included. Not among `taps`: what passes is no tensor."""


def taps(model: nn.Module) -> dict[str, Tap]:
    """Every tap of a model by its address."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


def call_taps(model: nn.Module) -> list[CallTap]:
    """One a layer, in order."""
    return [module for module in model.modules() if isinstance(module, CallTap)]


def names(address: str) -> tuple[str, ...]:
    """Every name a tap answers to: its address, the short one, and TransformerLens' with and without "hook_"."""
    found = re.fullmatch(r"layers\.(\d+)\.(?:tiles|attention)\.(\w+)", address)
    if found is None:
        return (address,)
    layer, what = found.groups()
    known = [address, f"layers.{layer}.{what}"]
    if what in TRANSFORMER_LENS:
        known += [f"blocks.{layer}.attn.{prefix}{TRANSFORMER_LENS[what]}" for prefix in ("hook_", "")]
    return tuple(known)


# What TransformerLens calls the same value; its scores carry the mask, ours do not.
TRANSFORMER_LENS = {
    "q": "q",
    "k": "k",
    "v": "v",
    "scores": "attn_scores",
    "relevance": "pattern",
    "output": "z",
    "screened": "z",
}


def matching(pattern: str, known: Collection[str]) -> list[str]:
    """The addresses that answer to a pattern."""
    found = [address for address in known if any(fnmatchcase(name, pattern) for name in names(address))]
    if not found:
        raise UnknownNameError(f"no tap matches {pattern!r}; {nearest(pattern, list(known))}taps: {', '.join(known)}")
    return found


@contextmanager
def trace(
    model: nn.Module, *patterns: str, keeping: Callable[[Tensor], Tensor] = lambda value: value
) -> Iterator[dict[str, Tensor]]:
    """The latest value at every tap whose name matches a pattern (* matches anything, dots too).

    `keeping` reduces each value before it is stored, where the whole would be too large to hold for every tap.
    """
    known = taps(model)
    seen: dict[str, Tensor] = {}
    chosen = dict.fromkeys(address for pattern in patterns for address in matching(pattern, known))
    with ExitStack() as listening:
        for name in chosen:
            listening.enter_context(known[name].listening(_keep_in(seen, name, keeping)))
        yield seen


@contextmanager
def edit(model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Within, what passes a tap is replaced by what its function makes of it: the same shape, the same type.

    Edits apply in the order given; a trace sees the edited value. Positions stay as they are: setting a key's relevance
    to zero for one head hides it from that head alone.
    """
    known = taps(model)
    with ExitStack() as editing:
        for pattern, change in changes.items():
            for name in matching(pattern, known):
                editing.enter_context(known[name].editing(alike(name, change)))
        yield


def alike(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The same change, refused where it gives back another shape or type."""

    def apply(value: Tensor) -> Tensor:
        changed = change(value)
        if changed.shape != value.shape or changed.dtype != value.dtype:
            raise ShapeError(
                f"the edit of {name} must return {value.dtype} {tuple(value.shape)} as it got, "
                f"got {changed.dtype} {tuple(changed.shape)}"
            )
        return changed

    return apply


def _keep_in(seen: dict[str, Tensor], name: str, keeping: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    def listen(value: Tensor) -> None:
        seen[name] = keeping(value.detach())

    return listen
