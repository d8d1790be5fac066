"""Leave-one-out: remove a key from every row and measure the change of each layer's output and of the loss."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from keysift.lens.diagnostics.removal import brightest_key, first_key, weights_without
from keysift.lens.layer_view import Block, LayerView
from keysift.lens.model import Progress, TextSet, no_progress

ChooseKey = Callable[[Block], Tensor]  # the key that each row loses, H T
REMOVED = {"brightest": brightest_key, "first": first_key}


def loss_without(texts: TextSet, choose_key: ChooseKey, *, layer: int | None = None) -> float:
    """The loss when every row loses a key, in one layer or in all of them."""

    def visit(view: LayerView) -> Tensor | None:
        if layer is not None and view.layer != layer:
            return None
        return view.output(lambda block: weights_without(block, choose_key(block)))

    return texts.loss(visit)


def output_changes(texts: TextSet, choose_key: ChooseKey) -> list[float]:
    """The relative change of each layer's output when every row of the layer loses a key."""
    layers = len(texts.model.info.heads)
    change, norm = torch.zeros(layers, dtype=torch.float64), torch.zeros(layers, dtype=torch.float64)

    def visit(view: LayerView) -> None:
        before = view.output(lambda block: block.weights_HTS)
        after = view.output(lambda block: weights_without(block, choose_key(block)))
        change[view.layer] += (after - before).double().square().sum()
        norm[view.layer] += before.double().square().sum()

    texts.visit_layers(visit)
    return (change / norm).sqrt().tolist()


def leave_out(texts: TextSet, progress: Progress = no_progress) -> dict[str, Any]:
    """Loss and output changes without the brightest key of each row, and without the first key: by layer and in all."""
    changes = {f"{name}_output": output_changes(texts, choose_key) for name, choose_key in REMOVED.items()}
    layers = len(texts.model.info.heads)
    rows = []
    for layer in range(layers):
        row: dict[str, Any] = {"layer": layer}
        row |= {name: loss_without(texts, choose_key, layer=layer) for name, choose_key in REMOVED.items()}
        rows.append(row | {name: values[layer] for name, values in changes.items()})
        progress("leave a key out", layer + 1, layers)
    return {
        "tokens": sum(map(len, texts.texts)),
        "loss": texts.loss(),
        **{name: loss_without(texts, choose_key) for name, choose_key in REMOVED.items()},
        "layers": rows,
    }
