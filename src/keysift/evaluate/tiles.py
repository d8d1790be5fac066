"""What each head has learned: its scalars, the share of keys it accepts, the queries that accept nothing.

Letters: B rows, H heads, T queries, S keys.
"""

import torch
from torch import Tensor

from keysift.evaluate.measured import Head
from keysift.models.language import LanguageModel
from keysift.nn.inference import Inference
from keysift.nn.tap import trace


@torch.no_grad()
def heads(model: LanguageModel, tokens_1T: Tensor, inference: Inference | None = None) -> list[Head]:
    """Every head on one text. Weights are formed for this, T x T of one layer at a time."""
    pairs = tokens_1T.shape[1] * (tokens_1T.shape[1] + 1) / 2

    def reduced(weights_BHTS: Tensor) -> Tensor:
        used_HTS = weights_BHTS[0] != 0
        accepted_H = used_HTS.flatten(1).sum(1) / pairs
        nothing_H = (~used_HTS.any(-1)).double().mean(-1)
        return torch.stack((accepted_H.double(), nothing_H, weights_BHTS[0].double().sum(-1).mean(-1)))

    with trace(model, "layers.*.relevance", keeping=reduced) as seen:
        model(tokens_1T, inference=inference)
    found = []
    for layer, (stored, reduced_3H) in enumerate(zip(model.scalars(), seen.values(), strict=True)):
        for head, (accepted, nothing, mass) in enumerate(reduced_3H.T.tolist()):
            found.append(
                Head(
                    layer=layer,
                    head=head,
                    window=_of(stored, "window", head),
                    acceptance=_of(stored, "acceptance", head),
                    accepted=accepted,
                    nothing=nothing,
                    mass=mass,
                )
            )
    return found


def _of(stored: dict[str, Tensor], name: str, head: int) -> float | None:
    if name not in stored:
        return None
    value = stored[name]
    return float(value if value.ndim == 0 else value[head])
