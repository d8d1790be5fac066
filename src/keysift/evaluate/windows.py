"""Learned window and acceptance of every head, and the keys it accepts on a text.

Letters: B rows, H heads, T queries, S keys.
"""

import time

import torch
from torch import Tensor

from keysift.evaluate.measured_model import MeasuredModel
from keysift.evaluate.memory import check_map_memory
from keysift.evaluate.texts import first_tokens
from keysift.models.language_model import LanguageModel
from keysift.nn.inference import Inference
from keysift.nn.tap import trace
from keysift.records.evaluation import Head, Windows
from keysift.runs import machine


def measure_windows(measured: MeasuredModel, text: str, *, tokens: int, command: str = "") -> Windows:
    """Statistics of every head on the first tokens of a text."""
    start = time.monotonic()
    check_map_memory(measured.model, tokens)
    ids = first_tokens(text, measured.tokenizer, tokens).ids
    heads = tuple(head_statistics(measured.model, torch.from_numpy(ids)[None]))
    return Windows(
        subject=measured.subject,
        text=text,
        tokens=len(ids),
        heads=heads,
        made=machine.record_provenance(command, start),
    )


@torch.no_grad()
def head_statistics(model: LanguageModel, tokens_1T: Tensor, inference: Inference | None = None) -> list[Head]:
    """Every head on one row of tokens. Forms the T x T weights of one layer at a time."""
    pairs = tokens_1T.shape[1] * (tokens_1T.shape[1] + 1) / 2

    def reduce_weights(weights_BHTS: Tensor) -> Tensor:
        accepted_HTS = weights_BHTS[0] != 0
        accepted_H = accepted_HTS.flatten(1).sum(1) / pairs
        nothing_H = (~accepted_HTS.any(-1)).double().mean(-1)
        return torch.stack((accepted_H.double(), nothing_H, weights_BHTS[0].double().sum(-1).mean(-1)))

    with trace(model, "layers.*.relevance", keeping=reduce_weights) as traced:
        model(tokens_1T, inference=inference)
    heads = []
    for layer, (scalars, reduced_3H) in enumerate(zip(model.scalars(), traced.values(), strict=True)):
        for head, (accepted, nothing, mass) in enumerate(reduced_3H.T.tolist()):
            heads.append(
                Head(
                    layer=layer,
                    head=head,
                    window=_scalar(scalars, "window", head),
                    acceptance=_scalar(scalars, "acceptance", head),
                    accepted=accepted,
                    nothing=nothing,
                    mass=mass,
                )
            )
    return heads


def _scalar(scalars: dict[str, Tensor], name: str, head: int) -> float | None:
    """The scalar of one head, whether layers store one value or one per head; None if the mechanism lacks it."""
    if name not in scalars:
        return None
    value = scalars[name]
    return float(value if value.ndim == 0 else value[head])
