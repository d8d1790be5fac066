"""Every diagnostic a record can hold has a title, a meaning and an origin; docs/lens.md lists them."""

from pathlib import Path

from keysift.lens.examine import inspect
from keysift.lens.terms import TERMS, term
from tests.lens.subjects import LINE, multiscreen, transformer

DOCS = Path(__file__).parents[2] / "docs" / "lens.md"


def test_every_diagnostic_has_a_term_and_every_term_a_diagnostic() -> None:
    names = {
        name
        for subject in (multiscreen(), transformer())
        for head in inspect(subject, [LINE]).heads
        for name in head.values
    }
    found = {term(name).meaning for name in names}
    assert found == {known.meaning for known in TERMS.values()}
    assert term("recall_8").title == "separability, N = 8"
    assert term("gradient_0.1_0.001").title == "gradient, T = 0.1, step 0.001"
    assert term("entropy_without_first").title == "entropy, first key aside"
    assert {known.origin for known in TERMS.values()} == {"published", "reconstructed", "ours"}


def test_the_docs_list_them() -> None:
    text = DOCS.read_text()
    for name, known in TERMS.items():
        assert f"| `{name}` | {known.meaning} | {known.origin} |" in text, name
