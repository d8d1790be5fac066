"""Verdicts on published claims follow from the numbers of a record."""

from dataclasses import replace
from pathlib import Path

import pytest

from keysift.lens import record as records
from keysift.lens.claims import claims, markdown, side_by_side
from keysift.lens.examine import inspect
from keysift.lens.record import Record
from tests.lens.subjects import LINE, multiscreen, transformer


@pytest.fixture(scope="module")
def record() -> Record:
    return inspect(transformer(), [LINE * 3], tokens=150)


def changed(
    record: Record, values: dict[str, float], by_length: dict[str, tuple[float | None, ...]] | None = None
) -> Record:
    heads = tuple(
        replace(head, values={**head.values, **values}, by_length={**head.by_length, **(by_length or {})})
        for head in record.heads
    )
    return replace(record, heads=heads)


def test_verdicts_follow_the_numbers(record: Record, tmp_path: Path) -> None:
    good = {f"recall_{n}": 0.8 for n in (1, 2, 4, 8, 16, 32, 64)}
    good |= {f"recall_of_shuffled_values_{n}": 0.5 for n in (2, 4, 8, 16, 32, 64)}
    good |= {f"gradient_{t:g}_0.001": 0.1 / t for t in (0.05, 0.1, 0.5, 1.0, 2.0)}
    good |= {
        "distance_tightness_5": 0.4,
        "distance_tightness_20": 0.4,
        "jacobian": 0.2,
        "spread_slope": 0.5,
        "reach": 9.0,
    }
    good |= {"gradient_1_0.001": 0.02, "fading_exponent_without_first": 0.3}
    lengths = tuple(None if low < 8 else float(low + high) for low, high in record.lengths)
    verdicts = [row[2] for row in claims(changed(record, good, {"distance_5": lengths}))]
    assert verdicts == [
        *["holds"] * 6,
        "means say nothing against it",
        "not reached at these lengths",
        "holds for these heads",
    ]
    bad = dict.fromkeys(good, 0.1) | {"distance_tightness_5": 1.2, "jacobian": 0.4, "spread_slope": 2.0}
    bad |= {"fading_exponent_without_first": 0.95}
    verdicts = [row[2] for row in claims(changed(record, bad, {"distance_5": (1.0,) * len(lengths)}))]
    assert verdicts == [
        *["does not hold"] * 6,
        "does not hold; 1/2 does",
        "reached by some heads",
        "does not hold here",
    ]


def test_a_stored_record_gives_the_same_table(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "record.json")
    again = markdown(records.load(tmp_path / "record.json"))
    assert again.splitlines()[0].startswith("tiny transformer (transformer, ")
    assert again.count("\n| ") == 11
    assert again == markdown(records.from_json(record.to_json()))


def test_models_side_by_side(record: Record) -> None:
    other = inspect(multiscreen(), [LINE])
    rows = [line.strip("| ").split(" | ") for line in side_by_side([record, other]).splitlines()]
    assert rows[0][1:] == ["tiny transformer", "tiny multiscreen"]
    table = {row[0]: row[1:] for row in rows}
    assert table["change of the other weights when the brightest key leaves"][1] == "0"
    assert float(table["change of the other weights when the brightest key leaves"][0]) > 0
    assert table["share of visible keys that is accepted"][0] == "-"
    assert float(table["loss, nats a token"][1]) == pytest.approx(other.texts[0].loss, rel=5e-3)
