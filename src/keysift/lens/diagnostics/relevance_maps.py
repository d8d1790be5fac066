"""Relevance maps of a model on one short text, as the record that the playground reads (docs/playground.md).

Letters: H heads, T queries, S keys.
"""

import time
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from keysift.core.errors import DataError
from keysift.lens.diagnostics.threshold import threshold
from keysift.lens.layer_view import LayerView
from keysift.lens.model import LensModel, encode_text
from keysift.records.evaluation import HeadMap, LayerMaps, RelevanceMaps, Subject
from keysift.runs import machine

MOST_TOKENS, MOST_NUMBERS = 1024, 8_000_000  # limits of the page


def relevance_maps(
    model: LensModel,
    text: str | Sequence[int],
    *,
    tokens: int | None = None,
    heads: Collection[tuple[int, int]] | None = None,
    source: str = "",
    command: str = "",
) -> RelevanceMaps:
    """Weights and scores of all heads, or of `heads` as (layer, head), on the first `tokens` tokens of a text.

    `text` is a string or a list of token ids; the record names it `source`.
    """
    start = time.monotonic()
    ids = encode_text(model, "the text", text, tokens) if isinstance(text, str) else list(text)
    selected = set(heads or ((layer, head) for layer, count in enumerate(model.info.heads) for head in range(count)))
    numbers = 2 * len(selected) * len(ids) ** 2
    if len(ids) > MOST_TOKENS or numbers > MOST_NUMBERS:
        raise DataError(
            f"maps of {len(selected)} heads on {len(ids)} tokens are {numbers:,} numbers; the page takes "
            f"{MOST_NUMBERS:,} numbers and {MOST_TOKENS:,} tokens, read fewer with --tokens"
        )
    maps: dict[int, tuple[HeadMap, ...]] = {}

    def visit(view: LayerView) -> None:
        in_layer = [head for head in range(view.heads) if (view.layer, head) in selected]
        if in_layer:
            maps[view.layer] = _layer(view, in_layer)

    model.run([ids], visit)
    pieces = [piece[:200] for piece in model.pieces(ids)]
    info = model.info
    return RelevanceMaps(
        subject=Subject(
            name=info.name, kind=info.family, parameters=info.parameters, trained_length=info.context, step=None
        ),
        text=source,
        tokens=tuple(pieces),
        layers=tuple(LayerMaps(heads=maps[layer]) for layer in sorted(maps)),
        made=machine.record_provenance(command, start),
    )


def _layer(view: LayerView, heads: list[int]) -> tuple[HeadMap, ...]:
    blocks = list(view.text_blocks(0))
    keys = blocks[-1].all_values_HSV.shape[1]
    weights_HTS = torch.cat([_pad_keys(block.weights_HTS, keys) for block in blocks], dim=1)
    scores_HTS = torch.cat(
        [_pad_keys(block.scores_HTS.masked_fill(~block.visible_HTS, 0), keys) for block in blocks], dim=1
    )
    threshold_H = threshold(view)
    return tuple(
        HeadMap(
            name=f"layers.{view.layer}.heads.{head}",
            weights=_rounded(weights_HTS[head]),
            scores=_rounded(scores_HTS[head]),
            threshold=None if threshold_H is None else float(f"{threshold_H[head].item():.5g}"),
        )
        for head in heads
    )


def _pad_keys(map_HTS: Tensor, keys: int) -> Tensor:
    return torch.nn.functional.pad(map_HTS, (0, keys - map_HTS.shape[-1]))


def _rounded(map_TS: Tensor) -> tuple[tuple[float, ...], ...]:
    """Five significant digits; exact zeros stay exact."""
    return tuple(tuple(float(f"{value:.5g}") for value in row) for row in map_TS.tolist())
