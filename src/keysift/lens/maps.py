"""Relevance maps of a model on one short text, as the JSON record the playground reads (docs/playground.md).

    {"format": "keysift-maps", "version": 1, "tokens": [...],
     "layers": [{"heads": [{"name", "weights": T x T, "scores": T x T, "threshold": number or null}]}]}

Letters: H heads, T queries, S keys.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from keysift.core.errors import DataError
from keysift.lens.reading import Reading
from keysift.lens.subject import Subject, checked
from keysift.lens.threshold import threshold

FORMAT, VERSION = "keysift-maps", 1
MOST_TOKENS, MOST_NUMBERS = 1024, 8_000_000  # what the page takes


def relevance_maps(
    subject: Subject,
    text: str | Sequence[int],
    *,
    tokens: int | None = None,
    heads: Collection[tuple[int, int]] | None = None,
) -> dict[str, Any]:
    """Weights and scores of every head, or of those named by (layer, head), on the text's first `tokens` tokens; a text
    may be given as its tokens."""
    ids = checked(subject, "the text", text, tokens) if isinstance(text, str) else list(text)
    chosen = set(heads or ((layer, head) for layer, count in enumerate(subject.about.heads) for head in range(count)))
    numbers = 2 * len(chosen) * len(ids) ** 2
    if len(ids) > MOST_TOKENS or numbers > MOST_NUMBERS:
        raise DataError(
            f"maps of {len(chosen)} heads on {len(ids)} tokens are {numbers:,} numbers; the page takes "
            f"{MOST_NUMBERS:,} numbers and {MOST_TOKENS:,} tokens, read fewer with --tokens"
        )
    found: dict[int, list[dict[str, Any]]] = {}

    def visit(reading: Reading) -> None:
        wanted = [head for head in range(reading.heads) if (reading.layer, head) in chosen]
        if wanted:
            found[reading.layer] = _layer(reading, wanted)

    subject.run([ids], visit)
    pieces = [piece[:200] for piece in subject.pieces(ids)]
    layers = [{"heads": found[layer]} for layer in sorted(found)]
    return {"format": FORMAT, "version": VERSION, "tokens": pieces, "layers": layers}


def _layer(reading: Reading, wanted: list[int]) -> list[dict[str, Any]]:
    blocks = list(reading.blocks_of(0))
    keys = blocks[-1].every_value_HSV.shape[1]
    weights_HTS = torch.cat([_wide(block.weights_HTS, keys) for block in blocks], dim=1)
    scores_HTS = torch.cat([_wide(block.scores_HTS.masked_fill(~block.seen_HTS, 0), keys) for block in blocks], dim=1)
    least = threshold(reading)
    return [
        {
            "name": f"layers.{reading.layer}.heads.{head}",
            "weights": _rounded(weights_HTS[head]),
            "scores": _rounded(scores_HTS[head]),
            "threshold": None if least is None else float(f"{least[head].item():.5g}"),
        }
        for head in wanted
    ]


def _wide(map_HTS: Tensor, keys: int) -> Tensor:
    return torch.nn.functional.pad(map_HTS, (0, keys - map_HTS.shape[-1]))


def _rounded(map_TS: Tensor) -> list[list[float]]:
    """Five significant digits; exact zeros stay exact."""
    return [[float(f"{value:.5g}") for value in row] for row in map_TS.tolist()]
