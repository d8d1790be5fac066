"""The list of diagnostics is complete, and every table of diagnostics derives from it."""

from pathlib import Path

import pytest

from keysift.lens.inspection import inspect
from keysift.records.lens_terms import TERMS, columns, compared, in_order, listed_name, table_name, term
from tests.lens.models import LINE, multiscreen, transformer

DOCS = Path(__file__).parents[2] / "docs" / "lens-reference.md"


@pytest.fixture(scope="module")
def names() -> set[str]:
    records = [inspect(model, [LINE]) for model in (multiscreen(), transformer())]
    return {name for record in records for head in record.heads for name in head.values}


def test_every_diagnostic_has_a_term_and_every_term_a_diagnostic(names: set[str]) -> None:
    assert {listed_name(name) for name in names} == set(TERMS)
    assert term("recall_8").title == "separability, N = 8"
    assert term("gradient_0.1_0.001").title == "gradient, T = 0.1, step 0.001"
    assert term("entropy_without_first").title == "entropy, without the first key"
    assert {entry.origin for entry in TERMS.values()} == {"published", "reconstructed", "ours"}


def test_tables_show_diagnostics_that_records_have(names: set[str]) -> None:
    assert {name for name, _ in (*columns(), *compared())} <= names
    assert all(term(name).column == heading for name, heading in columns())
    assert all(term(name).compared and term(name).title == title for name, title in compared())
    shown = {name for name in names if term(name).compared or term(name).column is not None}
    assert shown == {table_name(base) for base, entry in TERMS.items() if entry.compared or entry.column is not None}
    assert not term("recall_4").compared
    assert term("recall_4").column is None
    assert not term("largest_weight_without_first").compared


def test_diagnostics_are_sorted_like_the_list(names: set[str]) -> None:
    ordered = in_order(names)
    assert set(ordered) == names
    assert list(dict.fromkeys(map(listed_name, ordered))) == list(TERMS)
    assert ordered.index("retained_2") < ordered.index("retained_16"), "by number, not by letter"
    assert ordered.index("entropy") < ordered.index("entropy_without_first")


def test_the_docs_list_every_term() -> None:
    text = DOCS.read_text()
    for name, entry in TERMS.items():
        meaning = entry.meaning.replace("|", r"\|")  # a bare | would end the table cell
        assert f"| `{name}` | {meaning} | {entry.origin} |" in text, name
