"""Learned window and acceptance of every head, the keys it accepts on a text, and those a decoded token reads.

Letters: B rows, L layers, H heads, T queries, S keys.
"""

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from keysift.core.errors import DataError, RangeError, UnsupportedError
from keysift.evaluate.measured_model import MeasuredModel
from keysift.evaluate.memory import check_map_memory, check_memory
from keysift.evaluate.scoring import CHUNK
from keysift.evaluate.texts import first_tokens
from keysift.models.language_model import LanguageModel
from keysift.nn.cache import Cache
from keysift.nn.inference import Inference
from keysift.nn.tap import trace
from keysift.records.evaluation import Head, TileCount, Windows
from keysift.runs import machine

DECODED = 16  # tokens that are decoded after each length


def measure_windows(
    measured: MeasuredModel,
    text: str,
    *,
    tokens: int,
    lengths: Sequence[int] = (),
    expand_windows: bool = False,
    command: str = "",
) -> Windows:
    """Statistics of every head on the first tokens of a text, and counts of keys after `lengths` tokens of it."""
    start = time.monotonic()
    check_map_memory(measured.model, tokens)
    counts = _count_keys(measured, text, lengths, Inference(expand_windows=expand_windows)) if lengths else []
    ids = first_tokens(text, measured.tokenizer, tokens).ids
    heads = tuple(head_statistics(measured.model, torch.from_numpy(ids)[None]))
    return Windows(
        subject=measured.subject,
        text=text,
        tokens=len(ids),
        heads=heads,
        counts=tuple(counts),
        made=machine.record_provenance(command, start),
    )


@torch.inference_mode()
def _count_keys(measured: MeasuredModel, text: str, lengths: Sequence[int], inference: Inference) -> list[TileCount]:
    """Keys of every tile per decoded token: means over the DECODED tokens that follow each length of one text."""
    if min(lengths) < 1:
        raise RangeError(f"--lengths must be at least 1 token each, got {min(lengths)}")
    check_memory(measured.model, lengths, [inference])
    longest = max(lengths) + DECODED
    ids = torch.from_numpy(first_tokens(text, measured.tokenizer, longest).ids)
    if len(ids) < longest:
        raise DataError(f"{text} has {len(ids):,} tokens, --lengths needs {longest:,}; give a longer text")
    cache = measured.model.cache(1, inference=inference)
    counts: list[TileCount] = []
    for length in sorted(set(lengths)):
        for first in range(cache.lengths[0], length, CHUNK):
            measured.model.fill(ids[None, first : min(first + CHUNK, length)], cache=cache)
        decoded: list[Tensor] = []
        for at in range(max(length, cache.lengths[0]), length + DECODED):
            measured.model(ids[None, at : at + 1], cache=cache)
            decoded.append(_counts_of_token(cache))
        for (layer, head), three in _means(decoded):
            counts.append(TileCount(layer=layer, head=head, length=length, **three))
    return counts


def _counts_of_token(cache: Cache) -> Tensor:
    """Keys in the window, read and accepted by the latest token, 3 L H in the order of `TileCount`."""
    layers = []
    for counts in cache.key_counts():
        if counts is None:
            raise UnsupportedError(
                "keys are counted where the compiled step decodes a screening model (docs/search.md), "
                "which it does not here; leave out --lengths"
            )
        layers.append(torch.stack((counts.in_window[0], counts.read[0], counts.accepted[0])))
    return torch.stack(layers, dim=1)


def _means(decoded: list[Tensor]) -> Iterator[tuple[tuple[int, int], dict[str, float]]]:
    mean_3LH = torch.stack(decoded).double().mean(0)
    for layer in range(mean_3LH.shape[1]):
        for head, three in enumerate(mean_3LH[:, layer].T.tolist()):
            yield (layer, head), dict(zip(("in_window", "read", "accepted"), three, strict=True))


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
