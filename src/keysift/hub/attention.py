"""keysift's mechanisms as attention implementations of transformers: attn_implementation="keysift_entmax15".

Each mechanism is registered as an attention function and, under the same name, as a mask function; without a mask
function transformers would drop left padding. The mechanism gets the model's queries, keys and values. Selective
attention is softmax with a bias of the layer, "keysift_selective_mask"; it runs without a cache and without padding.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from keysift.core.errors import UnsupportedError
from keysift.hub.probe import visible_mask
from keysift.kernels.attend import attend
from keysift.kernels.selective_mask import selective_mask
from keysift.kernels.transforms import can_inspect_values
from keysift.mechanisms import find
from keysift.mechanisms.spec import ASSUMED_CONTEXT, Mechanism, Site

PREFIX = "keysift_"
SELECTIVE = "selective_mask"
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")


def register(name: str) -> str:
    """Register a mechanism with transformers; returns the name to pass as attn_implementation."""
    registered = f"{PREFIX}{name}"
    mechanism = find("softmax" if name == SELECTIVE else name)
    AttentionInterface.register(registered, _attention_function(mechanism, selective=name == SELECTIVE))
    AttentionMaskInterface.register(registered, AttentionMaskInterface()["sdpa"])
    return registered


def _attention_function(mechanism: Mechanism, *, selective: bool = False) -> Callable[..., tuple[Tensor, None]]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> tuple[Tensor, None]:
        unsupported = [name for name in _UNSUPPORTED if options.get(name) is not None]
        if mechanism.maps > 1 or unsupported or (dropout and module.training):
            reason = (
                f"it needs {mechanism.maps} score maps per head, for which the model has no projections"
                if mechanism.maps > 1
                else f"it does not support {' and '.join(unsupported or ['dropout'])} of {type(module).__name__}"
            )
            raise UnsupportedError(
                f"{mechanism.name} cannot replace this model's attention: {reason}; choose another mechanism, "
                f"or train a keysift Transformer with it"
            )
        learned = [scalar.name for scalar in mechanism.scalars if scalar.learned and scalar.follows is None]
        if learned and not module.training:
            warnings.warn(
                f"{mechanism.name} learns {', '.join(learned)}, but this model was not trained with it; using the "
                f"initial values",
                stacklevel=2,
            )
        keep = visible_mask(attention_mask)
        causal = _is_causal(mechanism, module, query, keep, options)
        if causal and keep is None and 1 < query.shape[2] < key.shape[2]:
            # The first call with a static cache: the queries are at its first slots, and the other slots are empty.
            key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
        bias = _selective_bias(query, key, keep, scaling) if selective else None
        out = attend(
            mechanism,
            query,
            key,
            value,
            keep=keep,
            bias=bias,
            causal=causal,
            scale=None if mechanism.cosine_scores or scaling is None else float(scaling),
            scalars=_initial_scalars(mechanism, module, query, value),
        )
        return out.transpose(1, 2).contiguous(), None

    return attention


def _selective_bias(query: Tensor, key: Tensor, keep: Tensor | None, scale: float | None) -> Tensor:
    if keep is not None:
        raise UnsupportedError(
            f"{SELECTIVE} needs texts without padding, windows or packing, whose keys all later queries see, and this "
            f"call has a mask; pass texts of one length, without an attention_mask, and use_cache=False"
        )
    return selective_mask(query, key, scale=scale)


def _is_causal(
    mechanism: Mechanism, module: nn.Module, query: Tensor, keep: Tensor | None, options: dict[str, Any]
) -> bool:
    """Whether `attend` hides later keys. A mask already contains causality, windows, padding and packed texts.

    A mechanism that needs distances counts them from the last key, so a mask may not end in empty slots of a cache.
    """
    given = options.get("is_causal")
    if not (getattr(module, "is_causal", True) if given is None else given):
        return False
    if not mechanism.causal_only:
        return keep is None and query.shape[2] > 1
    if keep is not None and can_inspect_values():
        own_keys = keep.diagonal(keep.shape[-1] - query.shape[2], dim1=-2, dim2=-1)
        if not bool(own_keys.any()):
            raise UnsupportedError(
                f"{mechanism.name} needs the distance of each key, and the cache has empty slots after the last token; "
                f"leave cache_implementation out"
            )
    return True


def _initial_scalars(mechanism: Mechanism, module: nn.Module, query: Tensor, value: Tensor) -> dict[str, Tensor]:
    """Initial values of the scalars that are not computed from tokens, for a layer of this model."""
    config: Any = getattr(module, "config", None)
    site = Site(
        heads=query.shape[1],
        key_width=query.shape[3],
        value_width=value.shape[3],
        context=getattr(config, "max_position_embeddings", None) or ASSUMED_CONTEXT,
        layer=getattr(module, "layer_idx", None) or 0,
        depth=getattr(config, "num_hidden_layers", None) or 1,
    )
    stored = [scalar for scalar in mechanism.scalars if not scalar.per.projected and scalar.follows is None]
    return {scalar.name: scalar.default(site).to(query.device, torch.float32) for scalar in stored}
