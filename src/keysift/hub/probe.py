"""Look into the attention of a transformers model, and change it, without touching the model's own arithmetic.

transformers finds an attention function and a mask function by name. A probe is a pair of functions under one name: the
mask function of the implementation the model uses, and an attention function that shows each layer to a visitor and
then calls the model's own implementation. So a probed model computes what it computed before, bit for bit, left padding
included; only a visitor that returns an output of its own changes it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from keysift.core.errors import UnsupportedError
from keysift.kernels import call as calls
from keysift.lens.reading import Reading
from keysift.lens.subject import Visit
from keysift.mechanisms.softmax import SOFTMAX

_visitors: WeakKeyDictionary[nn.Module, tuple[Visit, tuple[int, ...]]] = WeakKeyDictionary()


@contextmanager
def probed(model: Any, visit: Visit, padding: tuple[int, ...]) -> Iterator[None]:
    """Within, every attention layer of the model is shown to `visit`. `padding`: tokens on the left of each text."""
    own = model.config._attn_implementation
    layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
    for module in layers:
        _visitors[module] = (visit, padding)
    try:
        model.set_attn_implementation(_registered(own))
        yield
    finally:
        model.set_attn_implementation(own)
        for module in layers:
            _visitors.pop(module, None)


def _registered(own: str) -> str:
    """The name under which an implementation runs with a visitor; registered when first asked for."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = f"keysift_probe_{own}"
    masks = AttentionMaskInterface()
    if own not in masks:
        raise UnsupportedError(
            f"the attention implementation {own!r} makes no mask a probe could read; "
            f"load the model with attn_implementation='sdpa' or 'eager'"
        )
    if name not in masks:
        AttentionInterface.register(name, _showing(own))
        AttentionMaskInterface.register(name, masks[own])
    return name


def _showing(own: str) -> Callable[..., Any]:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        visit, padding = _visitors[module]
        changed = visit(_reading(module, query, key, value, attention_mask, padding, given))
        if changed is not None:
            return changed.transpose(1, 2).contiguous(), None
        found: tuple[Tensor, Tensor | None] = _function(module, own)(module, query, key, value, attention_mask, **given)
        return found

    return attention


def _function(module: nn.Module, own: str) -> Callable[..., Any]:
    """The implementation by that name; each model file keeps an eager one of its own."""
    from transformers import AttentionInterface

    if own == "eager":
        eager: Callable[..., Any] = sys.modules[type(module).__module__].eager_attention_forward
        return eager
    function: Callable[..., Any] = AttentionInterface()[own]
    return function


def _reading(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    padding: tuple[int, ...],
    given: dict[str, Any],
) -> Reading:
    for extra in ("position_bias", "s_aux"):
        if given.get(extra) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} adds {extra} to its scores, which the lens does not know; "
                f"GPT-2, Llama, Qwen, Mistral and Gemma models do not"
            )
    scaling = given.get("scaling")
    call = calls.check(
        SOFTMAX,
        query,
        key,
        value,
        keep=seen(mask),
        # With a mask, what is visible is in the mask: a window, padding, packed texts.
        causal=mask is None and query.shape[2] > 1,
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
    )
    layer = module.layer_idx
    assert isinstance(layer, int)
    return Reading(layer, call, padding, softcap=given.get("softcap"))


def seen(mask: Tensor | None) -> Tensor | None:
    """Boolean from either kind of mask: booleans for SDPA, zeros and the most negative number for eager."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    return mask > torch.finfo(mask.dtype).min / 2
