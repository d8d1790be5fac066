"""HTML of the report: figures show their command and numbers; missing data shows the command that creates it."""

import base64
import random
import re
import struct
import zlib
from dataclasses import replace
from html.parser import HTMLParser

from keysift.web.report.page import SECTIONS, report_page
from keysift.web.report.run_sections import comparison_sentences, format_rate
from keysift.web.shared.heat_map import Cell, heat_map, relevance_map
from keysift.web.shared.page import safe_token
from tests.web.report.records import HOSTILE, report, run


class Elements(HTMLParser):
    """Tags and attribute names of a page, parsed as a browser would."""

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
    assert len(figures) == 15  # three of them latency: forward, training step, decode
    for figure in figures:
        assert "<svg" in figure
        assert "<pre class='commands'" in figure, figure[:200]
        assert "<td" in figure.split("<details>")[1]
    assert "No record" not in page
    assert len(re.findall(r"<section id=", page)) == len(SECTIONS)


def test_text_of_records_is_escaped() -> None:
    page = report_page(report())
    elements = Elements(page)
    assert not {"script", "img", "link", "iframe", "object"} & set(elements.tags)
    assert not [name for name in elements.attributes if name.startswith("on") or name in ("src", "srcset")]
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_cell_shows_the_name_of_its_best_setting() -> None:
    page = report_page(report())
    grids = [part.split("</svg>")[0] for part in page.split(": recall by depth and context length'")[1:]]
    multiscreen, transformer = grids
    assert transformer.count(">RoPE x4</text>") == 4, "at both depths of the two lengths beyond the training length"
    assert ">windows expanded</text>" not in multiscreen, "without expansion the recall is the same"


def test_the_report_says_how_runs_were_comparison_sentences() -> None:
    matched_report = report()
    text = " ".join(comparison_sentences(matched_report))
    assert "1,000 to 1,000, 0.0% apart" in text
    assert "5,120 each" in text
    assert "Token stream: identical for all runs" in text
    assert "2^-6, the best of 2^-6, 2^-2 in sweeps/rates" in text
    first, second = matched_report.runs
    different_run = replace(second, stream="other", summary=replace(second.summary, parameters=1500, step=5))
    changed = replace(
        matched_report, runs=(run("a", "multiscreen", lr=0.25), different_run), stability=matched_report.stability
    )
    text = " ".join(comparison_sentences(changed))
    assert "50.0% apart" in text
    assert "different, 2,560 to 5,120" in text
    assert "2 different streams" in text
    assert "2^-2, not the best (2^-6) of" in text
    assert "not tuned by a sweep" in " ".join(comparison_sentences(replace(matched_report, stability=())))
    assert (format_rate(0.003), format_rate(0.5)) == ("0.003", "2^-1")
    assert first.name.endswith(HOSTILE)


def test_missing_data_shows_the_command_that_creates_it() -> None:
    text_run, recall_run = (replace(run(name, "multiscreen"), samples=()) for name in ("a b", "c"))
    text_run = replace(text_run, summary=replace(text_run.summary, data="stdlib"))
    bare = replace(report(), runs=(text_run,), stability=(), scaling=(), latency=(), notes=())
    page = report_page(bare)
    for command in ("eval retrieval", "eval positions", "eval loss", "eval windows", "eval relevance"):
        assert f"<code>keysift {command} &#x27;runs/a b&#x27;</code>" in page, command
    for command in ("bench models --out", "sweep --over lr=", "sweep --each psi=", "generate RUN"):
        assert f"<code>keysift {command}" in page, command
    page = report_page(replace(bare, runs=(recall_run,)))
    for command in ("retrieval runs/c --task recall", "windows runs/c --text recall", "relevance runs/c --text recall"):
        assert f"<code>keysift eval {command}</code>" in page, command
    assert page.count("These runs were not trained on text.") == 2
    # If some runs have a record, the hint names those that do not.
    assert "No record of c. Create it with" in report_page(replace(report(), runs=(*report().runs, recall_run)))
    empty = replace(recall_run, summary=replace(recall_run.summary, losses=(), validations=()))
    assert "No run has completed a step yet" in report_page(replace(bare, runs=(empty,)))


def shades(drawing: str) -> dict[str, list[bytes]]:
    """The rows of grey levels behind each colour of a relevance map."""
    found = re.findall(r"base64,([^']+)'/></mask><rect [^>]*fill='var\((--heat-\w+)\)'", drawing)
    rows = {}
    for text, colour in found:
        image = base64.b64decode(text)
        width, height, depth, kind = struct.unpack(">IIBB", image[16:26])
        assert (depth, kind) == (8, 0), "not a grey image"
        data = zlib.decompress(image[image.index(b"IDAT") + 4 :])
        rows[colour] = [data[y * (width + 1) + 1 : (y + 1) * (width + 1)] for y in range(height)]
    return rows


def test_exact_zeros_are_blank_in_a_relevance_map() -> None:
    drawing = relevance_map("map", [[0.0, 0.0], [1e-9, -2.0]])
    assert shades(drawing) == {"--heat-high": [b"\0\0", b"\x15\0"], "--heat-under": [b"\0\0", b"\0\xff"]}
    assert "<image" not in relevance_map("map", [[0.0]])


def test_a_large_relevance_map_stays_small() -> None:
    draw = random.Random(0)
    weights = [[draw.random() if key <= query else 0.0 for key in range(128)] for query in range(128)]
    assert len(relevance_map("map", weights)) < 12_000, "270 heads must not take more than 3 MB"


def test_opacity_of_a_cell_is_its_value() -> None:
    cells = {("0.5", "64"): Cell(0.25, "RoPE x2")}
    drawing = heat_map("h", cells, rows=["0.5"], columns=["64", "128"], labels=("depth", "length"), limit=1)
    assert drawing.count("<rect") == 1
    assert "fill-opacity='0.250'" in drawing
    assert ">25%</text>" in drawing
    assert ">RoPE x2</text>" in drawing


def test_white_space_of_tokens_is_visible() -> None:
    tokens = {"\n": "⏎", " a b": "·a b", "\t ": "⇥·", "  ": "··", "": "", "<b>": "&lt;b&gt;"}
    assert {token: safe_token(token) for token in tokens} == tokens
    full_report = report()
    maps = replace(full_report.runs[0].records[-1], tokens=("\n", " the", "c"))
    page = report_page(replace(full_report, runs=(replace(full_report.runs[0], records=(maps,)),)))
    assert "<span>⏎</span> <span>·the</span>" in page
