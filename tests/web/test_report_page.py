"""The report as text: a figure has its command and its numbers; what is missing says how to make it."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from keysift.web.heat import Square, heat_map, relevance_map
from keysift.web.report_page import SECTIONS, report_page
from keysift.web.report_runs import matched, rate
from tests.web.reports import HOSTILE, report, run


class Seen(HTMLParser):
    """Elements and attributes, as a browser would build them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_every_figure_has_its_command_and_its_numbers() -> None:
    page = report_page(report())
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert len(figures) == 16  # three of them latency: forward, training step, decode
    for figure in figures:
        assert "<svg" in figure
        assert "<pre class='made'" in figure, figure[:200]
        assert "<td" in figure.split("<details>")[1]
    assert "No record" not in page
    assert len(re.findall(r"<section id=", page)) == len(SECTIONS)


def test_no_text_becomes_markup() -> None:
    page = report_page(report())
    seen = Seen(page)
    assert not {"script", "img", "link", "iframe", "object"} & set(seen.tags)
    assert not [name for name in seen.attributes if name.startswith("on") or name in ("src", "srcset")]
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_the_best_setting_stands_in_the_cell() -> None:
    page = report_page(report())
    grids = [part.split("</svg>")[0] for part in page.split(": recall by depth and context length'")[1:]]
    ours, theirs = grids
    assert theirs.count(">RoPE x4</text>") == 4, "at both depths of the two lengths beyond the training length"
    assert ">windows expanded</text>" not in ours, "as trained it is as good"


def test_how_runs_were_matched() -> None:
    found = report()
    said = " ".join(matched(found))
    assert "1,000 to 1,000, 0.0% apart" in said
    assert "5,120 each" in said
    assert "Token stream: the same in the same order" in said
    assert "2^-6, the best of 2^-6, 2^-2 in sweeps/rates" in said
    first, second = found.runs
    other = replace(second, stream="other", summary=replace(second.summary, parameters=1500, step=5))
    changed = replace(found, runs=(run("a", "multiscreen", lr=0.25), other), stability=found.stability)
    said = " ".join(matched(changed))
    assert "50.0% apart" in said
    assert "not the same, 2,560 to 5,120" in said
    assert "2 different ones" in said
    assert "2^-2, not the best, which is 2^-6, of" in said
    assert "from no sweep" in " ".join(matched(replace(found, stability=())))
    assert (rate(0.003), rate(0.5)) == ("0.003", "2^-1")
    assert first.name.endswith(HOSTILE)


def test_what_is_missing_says_how_to_make_it() -> None:
    reads, recalls = (replace(run(name, "multiscreen"), samples=()) for name in ("a b", "c"))
    reads = replace(reads, summary=replace(reads.summary, data="stdlib"))
    bare = replace(report(), runs=(reads,), stability=(), scaling=(), latency=(), notes=())
    page = report_page(bare)
    for command in ("eval retrieval", "eval positions", "eval loss", "eval windows", "eval relevance"):
        assert f"<code>keysift {command} &#x27;runs/a b&#x27;</code>" in page, command
    for command in ("bench models --out", "sweep --over lr=", "sweep --each psi=", "generate RUN"):
        assert f"<code>keysift {command}" in page, command
    page = report_page(replace(bare, runs=(recalls,)))
    for command in ("retrieval runs/c --task recall", "windows runs/c --text recall", "relevance runs/c --text recall"):
        assert f"<code>keysift eval {command}</code>" in page, command
    assert page.count("These runs read no text.") == 2
    # Where some runs have a record, the others are named.
    assert "No record of c. Make one:" in report_page(replace(report(), runs=(*report().runs, recalls)))
    empty = replace(recalls, summary=replace(recalls.summary, losses=(), validations=()))
    assert "No run has made a step yet" in report_page(replace(bare, runs=(empty,)))


def test_exact_zeros_leave_no_mark() -> None:
    drawn = relevance_map("map", [[0.0, 0.0], [1e-9, -2.0]])
    marks = re.findall(r"<path d='([^']+)' fill='var\((--heat-\w+)\)' fill-opacity='([\d.]+)'", drawn)
    assert marks == [("M0 1h1v1h-1z", "--heat-high", "0.08"), ("M1 1h1v1h-1z", "--heat-under", "1.00")]
    assert "<path" not in relevance_map("map", [[0.0]])


def test_a_cell_is_as_dark_as_its_share() -> None:
    squares = {("0.5", "64"): Square(0.25, "RoPE x2")}
    drawn = heat_map("h", squares, rows=["0.5"], columns=["64", "128"], labels=("depth", "length"), limit=1)
    assert drawn.count("<rect") == 1
    assert "fill-opacity='0.250'" in drawn
    assert ">25%</text>" in drawn
    assert ">RoPE x2</text>" in drawn
