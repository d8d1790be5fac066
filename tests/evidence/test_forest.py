"""The forest plot, and the claims that need no training."""

from dataclasses import replace
from xml.etree import ElementTree

from evidence.pages import forest, settled
from evidence.pages.render import FOREST, decide, render
from evidence.study import find_studies
from keysift.mechanisms.screening import SCREENING
from keysift.mechanisms.spec import Promise

STUDIES = find_studies()


def test_every_row_is_a_claim_with_its_numbers() -> None:
    decided = decide(STUDIES)
    rows = forest.rows(STUDIES, decided)
    by_text = {(study.page.title, v.claim.text): v for study in STUDIES for v in decided[study.name]}
    assert rows
    for row in rows:
        verdict = by_text[row.study, row.text]
        assert verdict.comparison is not None
        assert (row.mean, row.interval) == (verdict.comparison.mean, verdict.comparison.bounds())
        assert f"{verdict.comparison.n} seeds" in row.basis
    with_effect = {v.claim.text for found in decided.values() for v in found if v.claim.primary and v.comparison}
    assert with_effect <= {row.text for row in rows}


def test_dots_and_intervals_lie_on_one_scale() -> None:
    row = forest.Row("a claim", "a study", "nats", 1.0, (0.5, 1.5), "supported", "6 seeds")
    drawing = forest.draw([row, replace(row, mean=-1.0, interval=(-1.5, -0.5))])
    assert drawing is not None
    tags = list(ElementTree.fromstring(drawing).iter())
    dots = [float(tag.attrib["cx"]) for tag in tags if tag.tag.endswith("circle")]
    lines = [tag.attrib for tag in tags if tag.tag.endswith("line") and tag.attrib.get("stroke") == "var(--s0)"]
    zero = (forest.PLOT_LEFT + forest.PLOT_RIGHT) / 2
    assert dots[0] - zero == zero - dots[1] > 0
    assert [float(line["x1"]) < dot < float(line["x2"]) for line, dot in zip(lines, dots, strict=True)] == [True, True]
    assert forest.draw([]) is None


def test_claims_that_do_not_hold_come_first() -> None:
    verdicts = [verdict for _, _, verdict, _ in settled.rows()]
    negative = [verdict.startswith(("does not", "not ")) for verdict in verdicts]
    assert negative == sorted(negative, reverse=True)
    assert any(negative)
    assert not all(negative)


def test_settled_claims_follow_from_the_promises(monkeypatch) -> None:
    def verdict() -> str:
        return next(row[2] for row in settled.rows() if "depends on no other key" in row[0])

    assert verdict() == "holds"
    monkeypatch.setattr(settled, "SCREENING", replace(SCREENING, holds=SCREENING.holds - {Promise.ABSOLUTE}))
    assert verdict() == "does not hold"


def test_the_page_shows_both() -> None:
    files = render()
    assert f"]({FOREST})" in files["README.md"]
    assert "## Settled without training" in files["README.md"]
    assert files[FOREST].startswith("<svg")
