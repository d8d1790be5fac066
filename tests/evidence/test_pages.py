"""Pages of a study, with and without records."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evidence.__main__ import parse
from evidence.claims.groups import group_by_seed
from evidence.pages.figures import draw
from evidence.pages.render import decide, render, render_study, verdicts
from evidence.pages.tables import measurement_tables
from evidence.records import read_records, write_records
from evidence.study import ROOT, Study, find_studies, read_study
from tests.evidence.test_rules import OURS, THEIRS, run_record, seeds

STUDIES = find_studies()
NEED_MEASURES = ("context_gain", "loss_by_position", "tokens_by_width")  # figures of what the records here lack
TRAINED = [study for study in STUDIES if study.plan is not None]


@pytest.mark.parametrize("name", [study.name for study in TRAINED])
def test_a_page_with_and_without_records(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(ROOT / name / "study.toml", folder)
    study = read_study(folder)
    assert study.plan is not None
    assert set(render_study(study, verdicts(study))) == {"README.md"}
    records = [*seeds((2.0, 2.1, 2.2)), *seeds((3.0,), model=THEIRS, lengths={(1, "as trained"): 50})]
    write_records(study.records, records)
    write_records(study.repeats, [replace(records[0], val_loss=2.05)])
    assert list(read_records(study.records).values()) == records
    files = render_study(study, verdicts(study))
    page = files["README.md"]
    assert ("figure.svg" in files) == ("(figure.svg)" in page) == (study.page.figure not in NEED_MEASURES)
    if "figure.svg" in files:
        assert ElementTree.fromstring(files["figure.svg"]).tag.endswith("svg")
    assert "2.1000 ± 0.1000" in page
    assert f"4 of {study.plan.runs} runs, 4 minutes" in page
    assert "loss +0.05 from the record (2.0500; standard deviation over seeds 0.1): the runs agree" in page
    write_records(study.repeats, [replace(records[0], overrides={**records[0].overrides, "steps": 10**6})])
    page = render_study(study, verdicts(study))["README.md"]
    assert "Repeated run" not in page, "repeats with other settings are not shown"


def test_every_study_is_in_the_table() -> None:
    table, _ = render()["README.md"].split("## Settled without training")
    links = set(re.findall(r"\| \[[^]]+\]\(([a-z0-9-]+)/README.md\) \|", table))
    assert links == {study.name for study in STUDIES}
    primary, exploratory = table.split("## Exploratory claims")
    for decided in decide(STUDIES).values():
        for verdict in decided:
            row = f"| {verdict.claim.text} | {verdict.effect} | {verdict.n} | **{verdict.text}** |"
            assert row in (primary if verdict.claim.primary else exploratory)


@pytest.mark.parametrize("study", TRAINED, ids=lambda study: study.name)
def test_the_command_of_a_page_is_understood(study: Study) -> None:
    page = (study.folder / "README.md").read_text()
    (command,) = re.findall(r"^```sh\npython -m evidence (.*)\n```", page, flags=re.MULTILINE)
    assert parse(command.split()).study == study.name  # type: ignore[union-attr]


def test_loss_by_position_is_drawn_from_half_the_training_length() -> None:
    points = [{"context": at, "setting": "as trained", "nats": 2.0} for at in (128, 2048)]
    drawing = draw("loss_by_position", group_by_seed([replace(run_record(OURS), measures={"positions": points})]))
    assert drawing is not None
    assert re.findall("as trained: [^<]+", drawing) == ["as trained: 2.00 at 0.5", "as trained: 2.00 at 8"]


def test_windows_and_update_angles_are_on_their_pages() -> None:
    tiles = [{"layer": 0, "windows": [2.0, 1234.0], "acceptances": [0.5, 0.5]}]
    with_windows = [replace(record, measures={"windows": tiles}) for record in seeds((2.0, 2.1, 2.2))]
    tables = measurement_tables(read_study(ROOT / "one-hop-long"), group_by_seed(with_windows))
    assert "| Multiscreen | 0.01 | 1,234, 1,234, 1,234 |" in tables
    steps = [float(2**n) for n in range(8)]
    curves = {
        "norms.tiles.q_proj.weight": [[step, 1 + step / 64] for step in steps],
        "angles.tiles.q_proj.weight": [[step, 0.1 * step**-0.5] for step in steps],
    }
    with_curves = [replace(record, curves=curves) for record in seeds((2.0, 2.1, 2.2))]
    tables = measurement_tables(read_study(ROOT / "stability"), group_by_seed(with_curves))
    assert "| Multiscreen | 0.01 | 2.95x | 0.0088 | -0.50 |" in tables
