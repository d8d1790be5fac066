"""`trace` and `edit` for a transformers model, under the addresses of keysift's models (nn/tap.py).

    with trace(model, "layers.*.relevance") as values: model(**tokens)
    with edit(model, {"layers.3.scores": f}): model(**tokens)

Values are those of the model's attention: q, k and v as it receives them, scores after scaling and soft cap but before
the mask, relevance (the weights), and output, B H T V; and those of its residual stream (stream_taps.py). A trace alone
leaves the model's output bit-identical.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from keysift.hub.probe import probed
from keysift.hub.stream_taps import attach, stream_taps
from keysift.kernels.eager import dense
from keysift.lens.layer_view import LayerView
from keysift.nn.tap import Tap, edit_taps, trace_taps

VALUES = ("q", "k", "v", "scores", "relevance", "output")


@contextmanager
def trace(
    model: Any, *patterns: str, keeping: Callable[[Tensor], Tensor] = lambda value: value
) -> Iterator[dict[str, Tensor]]:
    """Record the latest value at every address that matches a pattern; inside an `edit`, the edited value."""
    with _open_taps(model) as taps, trace_taps(taps, patterns, keeping) as values:
        yield values


@contextmanager
def edit(model: Any, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace the value at every address that matches a pattern by a tensor of the same shape and dtype."""
    with _open_taps(model) as taps, edit_taps(taps, changes):
        yield


_opened: WeakKeyDictionary[Any, dict[str, Tap]] = WeakKeyDictionary()


@contextmanager
def _open_taps(model: Any) -> Iterator[dict[str, Tap]]:
    """The taps of a probed model. Nested traces and edits of a model share one probe."""
    if model in _opened:
        yield _opened[model]
        return
    layers = range(model.config.num_hidden_layers)
    attention = {_address(layer, value): Tap() for layer in layers for value in VALUES}
    taps = _opened[model] = {**attention, **stream_taps(model)}
    try:
        with probed(model, lambda view: _attend(view, taps), ()), attach(model, taps):
            yield taps
    finally:
        del _opened[model]


def _address(layer: int, value: str) -> str:
    return f"layers.{layer}.attention.{value}"


def _attend(view: LayerView, taps: Mapping[str, Tap]) -> Tensor | None:
    """Pass the layer's attention through its taps. Returns None if nothing is edited, to keep the model's output."""
    q, k, v, scores, relevance, output = own = [taps[_address(view.layer, value)] for value in VALUES]
    if not any(tap.has_listeners for tap in own):
        return None
    call = view.call
    out, _ = dense.run(
        replace(call, q=q(call.q), k=k(call.k), v=v(call.v)),
        on_scores=lambda x: scores(view.apply_softcap(x)),
        on_weights=relevance,
    )
    out = output(out)
    return out if any(tap.has_editors for tap in own) else None
