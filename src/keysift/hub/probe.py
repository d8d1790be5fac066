"""Show every attention layer of a transformers model to a visitor, which may replace the layer's output.

transformers looks up an attention function and a mask function by name. A probe registers both under one name: the mask
function of the model's implementation, and an attention function that calls the visitor and then the model's own
attention function. The output of a probed model is bit-identical, with left padding too, unless a visitor returns one.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from keysift.core.errors import UnsupportedError
from keysift.kernels.call import make_call
from keysift.lens.layer_view import LayerView
from keysift.lens.model import Visit
from keysift.mechanisms.softmax import SOFTMAX

_visitors: WeakKeyDictionary[nn.Module, tuple[Visit, tuple[int, ...]]] = WeakKeyDictionary()


@contextmanager
def probed(model: Any, visit: Visit, padding: tuple[int, ...]) -> Iterator[None]:
    """Within, `visit` is called with every attention layer. `padding` is the left padding of each text."""
    own = model.config._attn_implementation
    layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
    for module in layers:
        _visitors[module] = (visit, padding)
    try:
        model.set_attn_implementation(_probe_name(own))
        yield
    finally:
        model.set_attn_implementation(own)
        for module in layers:
            _visitors.pop(module, None)


def _probe_name(own: str) -> str:
    """The name of the probe of an implementation; registered on first use."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = f"keysift_probe_{own}"
    masks = AttentionMaskInterface()
    if own not in masks:
        raise UnsupportedError(
            f"the attention implementation {own!r} has no mask function that a probe can use; "
            f"load the model with attn_implementation='sdpa' or 'eager'"
        )
    if name not in masks:
        AttentionInterface.register(name, _visiting(own))
        AttentionMaskInterface.register(name, masks[own])
    return name


def _visiting(own: str) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        visit, padding = _visitors[module]
        output = visit(_view(module, query, key, value, attention_mask, padding, options))
        if output is not None:
            return output.transpose(1, 2).contiguous(), None
        attend = _own_function(module, own)
        result: tuple[Tensor, Tensor | None] = attend(module, query, key, value, attention_mask, **options)
        return result

    return attention


def _own_function(module: nn.Module, own: str) -> Callable[..., Any]:
    """The attention function of an implementation; each model file of transformers has its own eager one."""
    from transformers import AttentionInterface

    if own == "eager":
        eager: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return eager
    function: Callable[..., Any] = AttentionInterface()[own]
    return function


def _view(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    padding: tuple[int, ...],
    options: dict[str, Any],
) -> LayerView:
    for extra in ("position_bias", "s_aux"):
        if options.get(extra) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} adds {extra} to its scores, which the lens does not support; "
                f"GPT-2, Llama, Qwen, Mistral, Gemma, SmolLM and Phi models work"
            )
    scaling = options.get("scaling")
    call = make_call(
        SOFTMAX,
        query,
        key,
        value,
        keep=visible_mask(mask),
        # A mask already contains causality, windows, padding and packed texts.
        causal=mask is None and query.shape[2] > 1,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
    )
    layer = module.layer_idx
    assert isinstance(layer, int)
    return LayerView(layer, call, padding, softcap=options.get("softcap"))


def visible_mask(mask: Tensor | None) -> Tensor | None:
    """A boolean mask from either kind: booleans for SDPA, zeros and the most negative number for eager."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2
