"""What a run's model costs: FLOPs and memory.

FLOPs are counted as the model's own work: two for each multiply-add of every matrix and, for the mechanism, of every
visible (query, key) pair; the backward pass costs twice the forward pass. Recomputation is not counted.
"""

from typing import cast

from keysift.models.language import LanguageModel
from keysift.nn.scalars import Scalars


def flops_per_token(model: LanguageModel, context: int) -> float:
    """Of a training step: forward and backward, the mechanism's own work included."""
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    if not getattr(model.config, "tied_embeddings", True):
        matrices -= model.config.vocab_size * model.config.width  # rows are looked up; another matrix gives the logits
    visible = (context + 1) / 2
    pairs = 0.0
    for layer in model.layers:
        scalars = cast(Scalars, layer.scalars)
        site, mechanism = scalars.site, scalars.mechanism
        pairs += site.heads * (mechanism.maps * site.key_width + site.value_width) * visible
    return 3 * 2 * (matrices + pairs)


def state_bytes(parameters: int, ema: bool) -> int:
    """Weights, gradients and the two moments of AdamW, in fp32."""
    return parameters * 4 * (5 if ema else 4)
