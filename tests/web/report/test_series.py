"""Series of a page: short labels, mean and spread over seeds, one style per model."""

import math
import re
from dataclasses import replace

import pytest

from keysift.records.evaluation import pooled
from keysift.records.runs import RunLabel
from keysift.runs.compare import run_labels
from keysift.web.report.page import report_page
from keysift.web.report.series import Palette, Style, mean_line
from keysift.web.report.sweep_page import sweep_page
from keysift.web.shared.chart import Axis, Line, chart, chart_or_values
from keysift.web.shared.labels import text_width, wrapped
from tests.web.report.records import retrieval, run, sweep_comparison, sweep_report, sweep_runs


def label(model: str, group: str) -> RunLabel:
    return RunLabel(name=group, group=group, model=model)


def test_labels_show_what_differs() -> None:
    runs = sweep_runs()
    labels = run_labels(list(runs.values()), list(runs))
    assert [labels[0].name, labels[0].group, labels[0].model] == [
        "multiscreen, lr 0.015625, seed 0",
        "multiscreen, lr 0.015625",
        "multiscreen",
    ]
    assert len({label.name for label in labels}) == len(runs)
    short = {f"run-{at}": summary for at, summary in enumerate(runs.values())}
    labels = run_labels(list(short.values()), list(short))
    assert [label.name for label in labels] == list(short), "short names of directories stay"
    assert labels[0].group == "multiscreen, lr 0.015625"
    twins = {f"{name} again {at}": runs[name] for at, name in enumerate(2 * list(runs)[:1])}
    assert len({label.name for label in run_labels(list(twins.values()), list(twins))}) == 2
    assert run_labels([], []) == []
    first = next(iter(runs.values()))
    (only,) = run_labels([first], ["a name that is longer than the limit"])
    assert only.name == first.model


def test_a_setting_that_follows_from_the_model_is_no_part_of_the_label() -> None:
    runs = {
        name: replace(summary, settings=summary.settings | {"clip": 0.0 if summary.arch == "multiscreen" else 1.0})
        for name, summary in sweep_runs().items()
    }
    assert not any("clip" in label.name for label in run_labels(list(runs.values()), list(runs)))


def test_a_model_has_one_colour() -> None:
    palette = Palette.of(label(model, f"{model} {rate}") for model in "ab" for rate in range(3))
    assert [palette.group(f"a {rate}") for rate in range(3)] == [Style(0, 0), Style(0, 1), Style(0, 2)]
    assert palette.group("b 1") == Style(1, 1)
    assert palette.model("b") == Style(1)
    assert palette.model("other") == Style(2)
    assert palette.model("other") == Style(2), "the same colour in the next chart"
    looks = {(s.dash, s.marker) for rate in range(2) for s in [palette.group(f"a {rate}", n) for n in range(2)]}
    assert len(looks) == 4, "inference settings differ from each other and from other groups"
    one_model = Palette.of(label("a", f"a {rate}") for rate in range(10))
    assert len({(s.colour % 8, s.dash) for s in one_model.groups.values()}) == 10


def test_lines_are_means_with_the_spread_over_seeds() -> None:
    line = mean_line(Style(0), "a", [[(1, 2.0), (2, 1.0)], [(1, 4.0), (2, math.nan)]])
    assert line.points == [(1, 3.0), (2, 1.0)]
    assert line.bars[0] == pytest.approx((3 - math.sqrt(2), 3 + math.sqrt(2)))
    assert not mean_line(Style(0), "a", [[(1, 2.0)]]).bars
    many = mean_line(Style(0), "a", [[(n, 1.0 + n) for n in range(100)]] * 2)
    assert "class='band'" in chart("c", [many], x=Axis("x"), y=Axis("y")), "many points have a band, not bars"
    page = sweep_page("Sweep", sweep_comparison())
    assert page.index("Mean over seeds") < page.index("<svg") < page.index("All runs")
    assert page.count("<polyline") == 8, "four groups in two charts"
    assert "0.1000" in page, "the standard deviation over seeds"


def test_questions_of_several_seeds_are_pooled() -> None:
    records = [retrieval("a", "multiscreen", ("as trained", "windows expanded"), decay) for decay in (1.0, 0.5)]
    cell = pooled(records).over_depths(256, "as trained")
    assert (cell.correct, cell.total) == (2 * (20 + 5), 80)
    page = report_page(sweep_report())
    assert page.count("by depth and context length'") == 4, "one heat map per group"
    assert "accuracy over 3 seeds of the best setting" in page


def test_single_points_are_listed_instead_of_drawn() -> None:
    axes = {"x": Axis("step"), "y": Axis("loss")}
    values = chart_or_values("c", [Line("a", [(5, 2.0)]), Line("b", [(5, 3.0)])], **axes)
    assert "<svg" not in values
    assert "a: 2.00 at step 5" in values
    assert "<svg" in chart_or_values("c", [Line("a", [(5, 2.0), (6, 1.0)]), Line("b", [(5, 3.0)])], **axes)
    bare = run("a", "multiscreen")
    one = replace(bare, summary=replace(bare.summary, losses=(2.0,), validations=((1, 2.0),)))
    page = report_page(replace(sweep_report(), runs=(one,), stability=(), scaling=(), latency=()))
    assert "<svg" not in page


def test_long_names_are_wrapped_not_cut() -> None:
    name = "transformer with a rather long name and many settings, " * 3 + "x" * 200
    lines = [Line(name, [(1, 1.0), (2, 2.0)]), Line("b", [(1, 1.0), (2, 3.0)])]
    drawing = chart("c", lines, x=Axis("x"), y=Axis("y"))
    texts = re.findall(r"<text [^>]*text-anchor='start'>([^<]*)</text>", drawing)
    assert "…" not in drawing
    assert "".join(texts).replace(" ", "").endswith("b")
    assert name.replace(" ", "") in "".join(texts).replace(" ", "")
    assert all(text_width(line) <= 100 for line in wrapped(name, 100))
    assert wrapped("windows expanded", 70, 10) == ["windows", "expanded"]
    assert wrapped("", 10) == [""]


def test_crowded_ticks_have_fewer_labels() -> None:
    dots = [Line("a", [(layer, 1.0) for layer in range(48)], joined=False)]
    drawing = chart("c", dots, x=Axis("layer", ticks=range(48)), y=Axis("y"))
    labels = re.findall(r"text-anchor='middle' class='tick'>(\d+)<", drawing)
    assert 8 <= len(labels) <= 24
    assert labels[:2] == ["0", str(int(labels[1]))]
