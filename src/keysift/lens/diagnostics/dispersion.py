"""Curves of attention dispersion over context length, from a lens record, for the playground. No torch."""

from collections.abc import Sequence
from typing import Any

from keysift.records.lens import Head, Record

FIRST, REST, EFFECTIVE = "first_mass", "largest_weight_without_first", "effective_keys"


def dispersion_curves(record: Record) -> dict[str, Any]:
    """Mass on the first token (mean over heads, and the head with the most) and the largest weight on other tokens."""
    measured = [k for k, (low, _) in enumerate(record.lengths) if low > 1 and _mean(record.heads, FIRST, k) is not None]
    strongest = max(record.heads, key=lambda head: head.values[FIRST] or 0.0)
    peak = max(measured, key=lambda k: strongest.by_length[FIRST][k] or 0.0)
    return {
        "model": record.model.name,
        "family": record.model.family,
        "parameters": record.model.parameters,
        "tokens": record.texts[0].tokens,
        # The middle of each bucket, at most the length of the text.
        "keys": [min((low + high) / 2, record.texts[0].tokens) for low, high in (record.lengths[k] for k in measured)],
        "first": [_mean(record.heads, FIRST, k) for k in measured],
        "strongest": [_mean([strongest], FIRST, k) for k in measured],
        "strongest_head": strongest.address,
        "strongest_at": list(record.lengths[peak]),
        "rest": [_mean(record.heads, REST, k) for k in measured],
        "effective": [_mean(record.heads, EFFECTIVE, k) for k in measured],
    }


def representative_heads(record: Record) -> list[tuple[int, int]]:
    """The heads with the most mass on the first token, the most on the previous token, and the most even weights."""
    names = (FIRST, "previous_mass", "effective_share")
    best = [max(record.heads, key=lambda head: head.values[name] or 0.0) for name in names]
    return list(dict.fromkeys((head.layer, head.head) for head in best))


def _mean(heads: Sequence[Head], name: str, bucket: int) -> float | None:
    values = [value for head in heads if (value := head.by_length[name][bucket]) is not None]
    return float(f"{sum(values) / len(values):.5g}") if values else None
