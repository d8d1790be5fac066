"""Taps: named points inside a model where values can be read and replaced. A `Tap` is an identity module.

    with trace(model, "layers.*.relevance") as seen:
        model(tokens_BT)
    seen["layers.2.tiles.relevance"]        # B H T S, exact zeros included

    with edit(model, {"layers.3.relevance": lambda w_BHTS: w_BHTS.clamp_max(0.5)}):
        model(tokens_BT)

The address of a tap is its path in the module tree. The module between layer and tap may be left out, and
TransformerLens names work too (blocks.3.attn.hook_pattern, blocks.3.hook_resid_post; "hook_" may be left out). Code
that would compute a value only for a tap checks `tap.has_listeners` first, so an unused tap costs nothing. Tap names
are public API: tests/golden/taps.txt lists them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from torch import Tensor, nn

from keysift.core.errors import ShapeError, UnknownNameError
from keysift.core.registry import nearest, nearest_names
from keysift.kernels.call import Call

V = TypeVar("V")


class TapBase(nn.Module, Generic[V]):
    """Identity that applies its editors to the value, then calls its listeners with the result."""

    def __init__(self) -> None:
        super().__init__()
        self._editors: list[Callable[[V], V]] = []
        self._listeners: list[Callable[[V], None]] = []

    @property
    def has_listeners(self) -> bool:
        """Whether anything reads or edits the value."""
        return bool(self._listeners or self._editors)

    @property
    def has_editors(self) -> bool:
        """Whether anything edits the value."""
        return bool(self._editors)

    @contextmanager
    def listening(self, listener: Callable[[V], None]) -> Iterator[None]:
        """Call `listener` with every value inside the `with` block."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @contextmanager
    def editing(self, editor: Callable[[V], V]) -> Iterator[None]:
        """Replace every value by `editor(value)` inside the `with` block."""
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


class Tap(TapBase[Tensor]):
    """Tap for a tensor."""


class CallTap(TapBase[Call]):
    """Tap for the arguments of `attend`: mechanism, q, k, v, scalars and positions. An edit may change any of them.

    `taps` does not list it, since its value is not a tensor.
    """


def taps(model: nn.Module) -> dict[str, Tap]:
    """All taps of a model by address."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Tap)}


def call_taps(model: nn.Module) -> list[CallTap]:
    """The call taps of a model, one per layer, in order."""
    return [module for module in model.modules() if isinstance(module, CallTap)]


def aliases(address: str) -> tuple[str, ...]:
    """All names of a tap: its address, the short form, and the TransformerLens name with and without "hook_"."""
    match = re.fullmatch(r"(layers\.(\d+)\.)?((?:tiles|attention|mlp)\.)?(\w+)", address)
    if match is None:
        return (address,)
    layer, number, inner, tap = match.groups()
    names = [address]
    if inner is not None and inner != "mlp.":
        names.append(f"{layer}{tap}")
    if tap in TRANSFORMER_LENS:
        theirs = TRANSFORMER_LENS[tap] if layer is None else f"blocks.{number}.{TRANSFORMER_LENS[tap]}"
        names += [theirs, theirs.replace("hook_", "")]
    return tuple(names)


# TransformerLens names of the same values. Its scores include the mask, ours do not.
TRANSFORMER_LENS = {
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "scores": "attn.hook_attn_scores",
    "relevance": "attn.hook_pattern",
    "output": "attn.hook_z",
    "screened": "attn.hook_z",
    "stream_in": "hook_resid_pre",
    "attention_out": "hook_attn_out",
    "tiles_out": "hook_attn_out",
    "stream_mid": "hook_resid_mid",
    "hidden": "mlp.hook_post",
    "mlp_out": "hook_mlp_out",
    "stream": "hook_resid_post",
    "embed": "hook_embed",
    "logits": "unembed.hook_out",
}


@contextmanager
def trace(
    model: nn.Module, *patterns: str, keeping: Callable[[Tensor], Tensor] = lambda value: value
) -> Iterator[dict[str, Tensor]]:
    """Record the latest value at every tap whose name matches a pattern (* matches any text, dots included).

    `keeping` reduces each value before it is stored, for values too large to hold at every tap.
    """
    with trace_taps(taps(model), patterns, keeping) as values:
        yield values


@contextmanager
def edit(model: nn.Module, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the value at every tap whose name matches a pattern by what the pattern's function returns.

    The function must return the same shape and dtype. Edits apply in the given order, and a trace records the edited
    value. Positions do not change: setting a key's relevance to zero for one head hides it from that head only.
    """
    with edit_taps(taps(model), changes):
        yield


@contextmanager
def trace_taps(
    taps: Mapping[str, Tap], patterns: Iterable[str], keeping: Callable[[Tensor], Tensor] = lambda value: value
) -> Iterator[dict[str, Tensor]]:
    """`trace` for taps by address; the models of keysift.hub have taps outside their module tree."""
    values: dict[str, Tensor] = {}
    addresses = dict.fromkeys(address for pattern in patterns for address in match_addresses(pattern, taps))
    with ExitStack() as listening:
        for address in addresses:
            listening.enter_context(taps[address].listening(_store_in(values, address, keeping)))
        yield values


@contextmanager
def edit_taps(taps: Mapping[str, Tap], changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """`edit` for taps by address."""
    matches = [(address, change) for pattern, change in changes.items() for address in match_addresses(pattern, taps)]
    with ExitStack() as editing:
        for address, change in matches:
            editing.enter_context(taps[address].editing(same_shape_and_dtype(address, change)))
        yield


def match_addresses(pattern: str, addresses: Collection[str]) -> list[str]:
    """The addresses with a name that matches the pattern. Raises UnknownNameError if there are none."""
    matches = [address for address in addresses if any(fnmatchcase(name, pattern) for name in aliases(address))]
    if not matches:
        if not addresses:
            raise UnknownNameError(
                "the model has no taps; trace and edit of keysift read keysift models, those of keysift.hub.taps "
                "transformers models"
            )
        raise UnknownNameError(
            f"no tap matches {pattern!r}; {nearest(pattern, list(addresses))}nearest of {len(addresses)} taps: "
            f"{', '.join(nearest_names(pattern, addresses))}"
        )
    return matches


def same_shape_and_dtype(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Wrap an edit so that it raises ShapeError if it changes the shape or the dtype."""

    def apply(value: Tensor) -> Tensor:
        changed = change(value)
        if changed.shape != value.shape or changed.dtype != value.dtype:
            raise ShapeError(
                f"the edit of {name} must return {value.dtype} {tuple(value.shape)} as it got, "
                f"got {changed.dtype} {tuple(changed.shape)}"
            )
        return changed

    return apply


def _store_in(values: dict[str, Tensor], address: str, keeping: Callable[[Tensor], Tensor]) -> Callable[[Tensor], None]:
    def listen(value: Tensor) -> None:
        values[address] = keeping(value.detach())

    return listen
