"""Pages of a study, with and without records."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evidence.__main__ import parse
from evidence.claims.groups import group_by_seed
from evidence.claims.rules import corrected
from evidence.pages.figures import draw
from evidence.pages.render import decide, render, render_study, table, verdicts
from evidence.pages.tables import choice, measurement_tables
from evidence.records import RunRecord, read_records, write_records
from evidence.runs import required_runs
from evidence.study import ROOT, Study, find_studies, read_study
from keysift.train.config import flatten
from tests.evidence.test_rules import OURS, THEIRS, run_record, seeds

STUDIES = find_studies()
NEED_MEASURES = ("context_gain", "loss_by_position", "tokens_by_width")  # figures of what the records here lack
TRAINED = [study for study in STUDIES if study.plan is not None]

PART_WAY = """
data = "stdlib"
steps = 9
[study]
seeds = [0, 1, 2, 3]
development_seeds = [7, 8]
[[study.grid]]
each = ["arch=multiscreen psi=2", "arch=transformer depth=1 heads=2 width=8"]
over = ["lr=0.01,0.02,0.04"]
[page]
order = 1
title = "Part-way"
larger = "more"
[[claims]]
text = "It is better"
rule = "loss_lower"
"""


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
    assert "trained a second time" not in page, "repeats with other settings are not shown"


def test_no_verdict_before_every_planned_seed(tmp_path: Path) -> None:
    folder = tmp_path / "tournament"
    folder.mkdir()
    (folder / "study.toml").write_text(PART_WAY)
    study = read_study(folder)
    runs = required_runs(study, lambda name: 0.0 if "lr=0.02" in name else 1.0)
    named = {**runs.choosing, **runs.deciding}

    def recorded(name: str) -> RunRecord:
        loss = 1.0 if "multiscreen" in name else 2.0 + named[name].seed / 10
        loss += 0.0 if "lr=0.02" in name else 1.0
        return replace(run_record(loss=loss, seed=named[name].seed), name=name, settings=flatten(named[name]))

    records = {name: recorded(name) for name in named}
    write_records(study.records, records.values())
    assert [(verdict.word, verdict.n) for verdict in verdicts(study)] == [("supported", "4")]
    last = next(name for name in runs.deciding if name.startswith("arch=transformer") and name.endswith("seed=3"))
    for missing in (last, next(iter(runs.choosing))):
        write_records(study.records, [record for name, record in records.items() if name != missing])
        (verdict,) = verdicts(study)
        assert (verdict.word, verdict.n) == ("unfinished", "3 of 4" if missing == last else "0 of 4")
        assert "**unfinished**" in table([study])
        assert corrected([replace(verdict, claim=replace(verdict.claim, primary=True))])[0].word == "unfinished"
    page = render_study(study, verdicts(study))["README.md"]
    assert study.plan is not None
    assert "by validation loss of seeds 7, 8, which decide no claim" in choice(study.plan)
    assert "first run began at commit c; `git diff c -- evidence/tournament/study.toml`" in page


def test_flops_are_in_the_table_where_they_were_recorded() -> None:
    study, records = read_study(ROOT / "stability"), seeds((2.0, 2.1, 2.2))
    assert "FLOPs" not in "".join(measurement_tables(study, group_by_seed(records)))
    counted = [replace(record, flops_per_token=1e6) for record in records]
    tables = measurement_tables(study, group_by_seed(counted))
    assert "| Multiscreen | 1,000 | 0.01 | 3 | 0 | 1.0 | 9.2e+09 | 2.1000 ± 0.1000 |" in tables


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
