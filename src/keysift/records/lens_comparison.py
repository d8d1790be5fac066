"""Compare models by their lens records: means over heads, experiments, and heads matched by behaviour. No torch."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from keysift.core.statistics import sample
from keysift.records.lens import Head, Record
from keysift.records.lens_terms import compared

Row = tuple[str, list[float | None]]  # title, one value per record
# What a head does with its attention: shares of the mass, all between 0 and 1.
BEHAVIOUR = (
    "first_mass",
    "previous_mass",
    "own_mass",
    "duplicate_mass",
    "induction_mass",
    "effective_share",
    "largest_weight_without_first",
)


def mean(heads: Iterable[Head], name: str) -> float | None:
    """Mean of a diagnostic over the heads that have it."""
    values = [value for head in heads if (value := head.values.get(name)) is not None]
    return sum(values) / len(values) if values else None


def comparison(records: Sequence[Record]) -> list[Row]:
    """One row for each quantity that at least one record has."""
    note = "" if _same_tokens(records) else " (different tokenizers: not comparable)"
    rows: list[Row] = [
        ("parameters", [record.model.parameters for record in records]),
        ("loss, bits per byte", [_bits_per_byte(record) for record in records]),
        (f"loss, nats per token{note}", [_loss(record) for record in records]),
        *((title, [mean(record.heads, name) for record in records]) for name, title in compared()),
        *((title, [value(record) if record.tests else None for record in records]) for title, value in _EXPERIMENTS),
    ]
    # A text without scored tokens has no loss.
    finite = [
        (title, [value if value is None or math.isfinite(value) else None for value in row]) for title, row in rows
    ]
    return [(title, values) for title, values in finite if any(value is not None for value in values)]


def matches(records: Sequence[Record]) -> list[dict[str, object]]:
    """For each head of the first record, the most similar head of each other record.

    The distance is the root mean square of the differences of BEHAVIOUR, over the diagnostics that both heads have.
    """
    found: list[dict[str, object]] = []
    for number, other in enumerate(records[1:], 1):
        for head in records[0].heads:
            distance, best = min(
                ((_distance(head.values, candidate.values), candidate) for candidate in other.heads),
                key=lambda pair: pair[0],
            )
            if math.isfinite(distance):
                places = {"head": [head.layer, head.head], "other": [best.layer, best.head]}
                found.append({"model": number, **places, "distance": distance})
    return found


def _distance(first: Mapping[str, float | None], second: Mapping[str, float | None]) -> float:
    squares = [
        (x - y) ** 2 for name in BEHAVIOUR if (x := first.get(name)) is not None and (y := second.get(name)) is not None
    ]
    return math.sqrt(sum(squares) / len(squares)) if squares else math.inf


def _same_tokens(records: Sequence[Record]) -> bool:
    """Whether all models split the texts into the same number of tokens of an equally large vocabulary."""
    return len({(record.model.vocabulary, *(text.tokens for text in record.texts)) for record in records}) == 1


def _loss(record: Record) -> float:
    return sum(text.loss for text in record.texts) / len(record.texts)


def _bits_per_byte(record: Record) -> float | None:
    """None if a text has none: models of generated tasks are scored on their answers only."""
    bits = sample(text.bits_per_byte for text in record.texts)
    return bits.mean if bits is not None and len(bits) == len(record.texts) else None


def _dilution_exponent(record: Record) -> float | None:
    exponents = sample(row["exponent"] for row in record.tests["dilution"]["heads"])
    return None if exponents is None else exponents.mean


_EXPERIMENTS: tuple[tuple[str, Callable[[Record], float | None]], ...] = (
    ("dilution exponent", _dilution_exponent),
    ("loss without the brightest keys", lambda record: record.tests["leave_out"]["brightest"]),
    (
        "top keys for a loss within 5%",
        lambda record: (
            record.tests["functional"]["deletion"]["smallest"]["0.05"] if math.isfinite(_loss(record)) else None
        ),
    ),
)
