"""Verdicts on published claims follow from the numbers of a record."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.claims.lens_claims import claims, markdown
from evidence.claims.lens_compare import markdown as comparison
from evidence.claims.lens_excerpt import excerpt
from keysift.lens.inspection import inspect
from keysift.records import lens as records
from keysift.records.lens import Record
from tests.lens.models import LINE, multiscreen, transformer


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
    sets, tried = (1, 2, 4, 8, 16, 32, 64), (1, 2, 5, 10, 20, 50)
    good = {f"recall_{n}": 0.8 for n in sets} | {f"recall_of_shuffled_values_{n}": 0.5 for n in sets}
    good |= {f"recall_lower_{n}": 0.1 for n in sets} | {f"recall_upper_{n}": 0.9 for n in sets}
    good |= {f"gradient_{t:g}_0.001": 0.1 / t for t in (0.02, 0.05, 0.1, 1.0, 2.0, 8.0)}
    good |= {
        "distance_tightness_5": 0.4,
        "distance_tightness_20": 0.4,
        "gradient_above_published": 0.0,
        "gradient_tightness": 0.2,
        "spread_slope": 0.5,
        "reach": 9.0,
    }
    good |= {"gradient_1_0.001": 0.02, "fading_exponent_without_first": 0.3}
    lengths = tuple(None if low < 8 else float(low + high) for low, high in record.lengths)
    distances: dict[str, tuple[float | None, ...]] = dict.fromkeys((f"distance_{n}" for n in tried), lengths)
    for n in tried:  # as far as its reference from N = 0.05 of the context on
        far = (
            None if low < 8 else (low + high) * (1 if n > 0.025 * (low + high) else 2) for low, high in record.lengths
        )
        distances[f"distance_expected_output_{n}"] = tuple(far)
    verdicts = [row[2] for row in claims(changed(record, good, distances))]
    assert verdicts == [
        *["holds"] * 6,
        "holds for the first",
        *["holds"] * 2,
        "not contradicted",
        "not reached at these lengths",
        f"holds for {len(record.heads)} of {len(record.heads)} heads",
    ]
    bad = dict.fromkeys(good, 0.1) | {"distance_tightness_5": 1.2, "spread_slope": 2.0}
    bad |= {"fading_exponent_without_first": 0.95} | {f"recall_{n}": 0.3 for n in sets}
    distances = {f"distance_{n}": (float(n),) * len(lengths) for n in tried}
    distances |= {f"distance_expected_output_{n}": (999.0,) * len(lengths) for n in tried}
    rows = claims(changed(record, bad | {"recall_of_shuffled_values_2": 0.4}, distances))
    assert [row[2] for row in rows] == [
        *["does not hold"] * 2,
        "the lower bound holds, the upper does not",
        *["does not hold"] * 6,
        "does not hold; our bound does",
        "reached by some heads",
        "does not hold",
    ]
    assert rows[6][1] == "64 to 127 keys: none and none; 128 to 255 keys: none and none"
    below_bound = claims(changed(record, good | {"recall_lower_2": 0.9}, distances))
    assert below_bound[2][2] == "does not hold"


def test_a_stored_record_gives_the_same_table(record: Record, tmp_path: Path) -> None:
    record.save(tmp_path / "record.json")
    again = markdown(records.load(tmp_path / "record.json"))
    assert again.splitlines()[0].startswith("tiny transformer (transformer, ")
    assert again.count("\n|") == 14
    assert again == markdown(records.from_json(record.to_json()))


def test_an_excerpt_gives_the_same_tables(record: Record, tmp_path: Path) -> None:
    """Of one record, and of two that become a list."""
    short = excerpt(record)
    assert claims(short) == claims(record)
    assert comparison([short, short]) == comparison([record, record])
    assert len(json.dumps(short.to_json())) < len(json.dumps(record.to_json())) / 3
    (tmp_path / "both.json").write_text(json.dumps([record.to_json(), short.to_json()]))
    assert [loaded.model.name for loaded in records.load_all(tmp_path / "both.json")] == ["tiny transformer"] * 2


def test_models_side_by_side(record: Record) -> None:
    other = inspect(multiscreen(), [LINE])
    rows = [line.strip("| ").split(" | ") for line in comparison([record, other]).splitlines()]
    assert rows[0][1:] == ["tiny transformer", "tiny multiscreen"]
    table = {row[0]: row[1:] for row in rows}
    assert table["change without the brightest key"][1] == "0"
    assert float(table["change without the brightest key"][0]) > 0
    assert table["accepted share"][0] == "-"
    assert float(table["loss, bits per byte"][0]) == pytest.approx(record.texts[0].bits_per_byte, rel=5e-3)
    note = " (different tokenizers: not comparable)" if other.texts[0].tokens != record.texts[0].tokens else ""
    assert float(table[f"loss, nats per token{note}"][1]) == pytest.approx(other.texts[0].loss, rel=5e-3)
