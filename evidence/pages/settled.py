"""Claims that need no training runs: promises that tests confirm or refute, and measurements of pretrained models."""

from collections.abc import Iterator
from pathlib import Path

from evidence.claims import lens_claims
from evidence.study import ROOT
from keysift.core.markdown import table_head, table_row
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.screening import SCREENING
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Promise
from keysift.records.lens import load

MODELS = ("stories15M", "SmolLM2")
Row = tuple[str, str, str, str]  # claim, evidence, verdict, link


def section(root: Path = ROOT) -> str:
    """The section of the table of claims, claims that do not hold first."""
    lines = [
        "## Settled without training",
        "",
        "Promises are tested on many inputs or refuted by a counterexample (`keysift check NAME`). The measurements",
        "are of two pretrained softmax Transformers, one text each.",
        "",
        *table_head("claim", "evidence", "verdict", "page"),
        *(table_row(claim, evidence, f"**{verdict}**", page) for claim, evidence, verdict, page in rows(root)),
    ]
    return "\n".join(lines) + "\n"


def rows(root: Path = ROOT) -> list[Row]:
    """Claims that do not hold come first; a claim that was measured on several models has a row for each."""
    found = [*_measured(root), *_promised()]
    order = list(dict.fromkeys(claim for claim, *_ in found))
    return sorted(found, key=lambda row: (not row[2].startswith(("does not", "not ")), order.index(row[0])))


def _promised() -> Iterator[Row]:
    claims = (
        ("Relevance can be absolute: the weight of a key depends on no other key", Promise.ABSOLUTE),
        ("A visible key can be refused exactly, with weight zero", Promise.EXACT_ZERO),
        ("All keys can be refused exactly: the output is zero", Promise.REFUSES_EXACTLY),
    )
    for text, promise in claims:
        yield _row(text, promise, holds=promise in SCREENING.holds and promise not in SOFTMAX.holds)
    hull = Promise.CONVEX_HULL
    text = "The output of softmax lies in the convex hull of the values; that of screening need not"
    yield _row(text, hull, holds=hull in SOFTMAX.holds and hull not in SCREENING.holds)


def _row(text: str, promise: Promise, *, holds: bool) -> Row:
    names = {True: "holds", False: "is refuted"}
    count = sum(promise in mechanism.holds for mechanism in MECHANISMS)
    evidence = (
        f"the promise `{promise.label}` {names[promise in SCREENING.holds]} for screening, "
        f"{names[promise in SOFTMAX.holds]} for softmax, and holds for {count} of {len(MECHANISMS.names())} mechanisms"
    )
    return text, evidence, "holds" if holds else "does not hold", "[mechanisms](../docs/mechanisms/README.md)"


def _measured(root: Path) -> Iterator[Row]:
    for name in MODELS:
        record = load(root / "lens" / f"{name}.json")
        for claim, measured, verdict in lens_claims.settled(record):
            yield claim, f"{name}: {measured}", verdict, "[lens](lens/README.md)"
