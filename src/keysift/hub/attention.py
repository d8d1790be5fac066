"""keysift's mechanisms in other people's models: attn_implementation="keysift_entmax15".

A mechanism is registered with transformers as an attention function and, under the same name, a mask function; without
the second, left padding would be lost. It reads the model's own queries, keys and values.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from keysift.core.errors import UnsupportedError
from keysift.hub.probe import seen
from keysift.kernels.attend import attend
from keysift.mechanisms import find
from keysift.mechanisms.spec import ASSUMED_CONTEXT, Mechanism, Site

PREFIX = "keysift_"
_REFUSED = ("softcap", "s_aux", "position_bias")


def register(name: str) -> str:
    """Make a mechanism known to transformers; gives the name to pass as attn_implementation."""
    known = f"{PREFIX}{name}"
    AttentionInterface.register(known, _function(find(name)))
    AttentionMaskInterface.register(known, AttentionMaskInterface()["sdpa"])
    return known


def _function(mechanism: Mechanism) -> Callable[..., tuple[Tensor, None]]:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **given: Any,
    ) -> tuple[Tensor, None]:
        asked = [name for name in _REFUSED if given.get(name) is not None]
        if mechanism.maps > 1 or asked or (dropout and module.training):
            why = (
                f"it reads {mechanism.maps} maps for each head, which the model has no projections for"
                if mechanism.maps > 1
                else f"it knows no {' and no '.join(asked or ['dropout'])}, which {type(module).__name__} asks for"
            )
            raise UnsupportedError(
                f"{mechanism.name} cannot take the place of this model's attention: {why}; choose another mechanism, "
                f"or train a keysift Transformer with it"
            )
        learned = [scalar.name for scalar in mechanism.scalars if scalar.learned and scalar.follows is None]
        if learned and not module.training:
            warnings.warn(
                f"{mechanism.name} learns {', '.join(learned)}, which this model was never trained with: they stand at "
                f"their initial values",
                stacklevel=2,
            )
        out = attend(
            mechanism,
            query,
            key,
            value,
            keep=seen(attention_mask),
            # With a mask, what is visible is in the mask: a window, padding, packed texts.
            causal=attention_mask is None and query.shape[2] > 1,
            scale=None if mechanism.cosine_scores or scaling is None else float(scaling),
            scalars=_at_start(mechanism, module, query, value),
        )
        return out.transpose(1, 2).contiguous(), None

    return attention


def _at_start(mechanism: Mechanism, module: nn.Module, query: Tensor, value: Tensor) -> dict[str, Tensor]:
    """Initial values of all that is not computed from the tokens, for a layer of this model."""
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
