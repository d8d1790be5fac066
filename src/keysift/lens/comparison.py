"""The rows of a table that compares models by their records: means over heads, and the experiments. No torch."""

from collections.abc import Callable, Sequence

from keysift.core.statistics import sample
from keysift.lens.findings import mean
from keysift.records.lens import Record
from keysift.records.lens_terms import compared

Row = tuple[str, list[float | None]]  # title, one value per record


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
    return [(title, values) for title, values in rows if any(value is not None for value in values)]


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
        lambda record: record.tests["functional"]["deletion"]["smallest"]["0.05"],
    ),
)
