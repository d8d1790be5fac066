"""Inspection page in a browser: maps, switch, exact removal, comparison, film, link; text stays text."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from keysift.lens.inspection import inspect
from keysift.lens.layer_view import LayerView
from keysift.records.lens import Record
from keysift.records.lens_comparison import comparison, matches
from keysift.web.inspect.page import inspect_page
from tests.lens.models import LINE, multiscreen, transformer
from tests.web.inspect.opened import TEXT, Opened

pytestmark = pytest.mark.slow  # a browser each

HOSTILE = "</script><img src=x onerror=alert(1)> \u202e\u05e9\u05dc\u05d5\u05dd <b>&amp;"


class HostileTokens:
    """A model whose tokens are all hostile texts."""

    def __init__(self) -> None:
        self.inner = transformer()
        self.info = replace(self.inner.info, name=HOSTILE)

    def encode(self, text: str) -> list[int]:
        return [ord(c) % 250 for c in text]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [f"{HOSTILE}{i}" for i in range(len(ids))]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces(ids))

    def targets(self, ids: Sequence[int]) -> list[int]:
        return self.inner.targets(ids)

    def run(self, texts: Sequence[Sequence[int]], visit: Any) -> Any:
        return self.inner.run(texts, visit)


def weights(query: int, removed: Sequence[int] = ()) -> list[np.ndarray]:  # type: ignore[type-arg]
    """Weights of a query in every head, computed again by the model's own rule without some keys."""
    rows: list[np.ndarray] = []  # type: ignore[type-arg]

    def visit(view: LayerView) -> None:
        for block in view.blocks():
            keep = block.visible_HTS.clone()
            keep[..., list(removed)] = False
            rows.extend(block.reweigh(keep)[:, query].double().numpy())

    transformer().run([list(TEXT.encode())], visit)
    return rows


def test_story_maps_switch_and_removal(browser: Browser, softmax: Record, tmp_path: Path) -> None:
    opened = Opened(
        browser, tmp_path / "report.html", inspect_page([softmax]), viewport={"width": 1280, "height": 1000}
    )
    page = opened.page
    shown = page.locator("#story .finding h3").all_inner_texts()
    assert shown == [finding.sentence for finding in softmax.story]
    assert page.locator("#thumbnails button canvas").count() == len(softmax.heads)
    pair = next(finding for finding in softmax.story if finding.pairs).pairs[0]
    assert page.inner_text("#head-title") == f"Layer {pair.layer}, head {pair.head}", "the page opens with the example"
    _check_kinds(page, softmax)
    page.locator("[data-head='L1H2']").first.click()
    page.evaluate("selectCell(40, null)")
    assert page.inner_text("#query-title").startswith("Query 40: ")
    _check_numbers(page, softmax)
    page.locator("#keys [data-key='12'] button").click()
    assert "it had " in page.inner_text("#query-note")
    page.locator("#keys [data-key='30'] button").click()
    for head, expected in enumerate(weights(40, (12, 30))):
        after = dict(page.evaluate(f"[...weightsWithout(currentMap(), {head}, 40, view.removed)]"))
        assert [after[key] for key in range(41)] == pytest.approx(expected[:41].tolist(), abs=1e-6), head
    assert "they had " in page.inner_text("#query-note")
    assert "although their scores did not change" in page.inner_text("#query-note")
    assert page.locator("#everywhere tbody tr").count() == len(softmax.heads)
    assert page.inner_text("#keys [data-key='12'] button") == "restore"
    _check_switch_and_beside(page)
    _check_keyboard_and_link(page, browser, tmp_path)
    _check_files(page)
    assert opened.problems == []


def _check_kinds(page: Page, record: Record) -> None:
    """A kind without heads names the nearest head with its score."""
    induction = max(record.heads, key=lambda head: head.values["induction_mass"] or 0)
    row = page.locator("#kinds-by-name tbody tr").filter(has_text="induction").inner_text()
    share = 100 * (induction.values["induction_mass"] or 0)
    assert row.split("\t")[1].split() == ["none;", "nearest", induction.label, f"{share:.1f}%"]
    assert row.split("\t")[2] == "> 30%"


def _check_numbers(page: Page, record: Record) -> None:
    """The page holds the numbers of the record, and every key of the query has the model's weight."""
    shown, data = page.evaluate("CONTENT.records[0]"), record.to_json()
    for part in ("model", "texts", "lengths", "tests", "swaps", "findings", "made"):
        assert shown[part] == data[part], part
    assert [head["values"] for head in shown["heads"]] == [head["values"] for head in data["heads"]]
    last = weights(102)
    for head, expected in enumerate(weights(40)):
        rows = page.evaluate(f"currentMap().row({head}, 40)")
        assert len(rows) == 41
        for row in rows:
            assert row["exact"]
            assert row["weight"] == pytest.approx(expected[row["key"]], abs=1e-6)
        coded = [row for row in page.evaluate(f"currentMap().row({head}, 102)") if not row["exact"]]
        assert len(coded) == 103 - record.maps[0].keys > 0
        for row in coded:
            assert row["weight"] == pytest.approx(last[head][row["key"]], rel=0.1, abs=1e-6)
    test = record.tests["absolute_percentile"]
    for score in (-99.0, test["best"]["1"][2][3] + 0.01, 99.0):
        expected = float(np.interp(score, test["best"]["1"][2], test["levels"]))
        assert page.evaluate(f"percentile(view, {score}, 'best')") == pytest.approx(expected, abs=1e-4)


def _pixels(page: Page) -> str:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return str(page.evaluate("document.querySelector('canvas.map').toDataURL()"))


def _check_switch_and_beside(page: Page) -> None:
    pictures = []
    for mode in ("Raw score", "Absolute", "Weight"):
        page.get_by_label(mode, exact=True).check(force=True)
        pictures.append(_pixels(page))
    assert len(set(pictures)) == 3
    page.select_option("#beside", "0.1.1.2")  # the same head with sparsemax
    captions = page.locator("figcaption").all_inner_texts()
    assert [text.split()[0] for text in captions] == ["L1H2", "L1H2", "difference"]
    assert "sparsemax" in captions[1]
    page.select_option("#beside", "")


def _check_keyboard_and_link(page: Page, browser: Browser, tmp_path: Path) -> None:
    canvas = page.locator("canvas.map").first
    canvas.focus()
    page.keyboard.press("ArrowUp")
    assert page.evaluate("view.query") == 39
    page.keyboard.press("ArrowLeft")
    before = _pixels(page)
    page.keyboard.press("+")
    assert page.evaluate("frame.span") < len(TEXT)
    assert _pixels(page) != before
    box = canvas.bounding_box()
    assert box is not None
    left = page.evaluate("frame.left")
    page.mouse.move(box["x"] + 300, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 360, box["y"] + 340, steps=3)
    page.mouse.up()
    assert page.evaluate("frame.left") != left, "dragging pans"
    page.keyboard.press("]")
    assert page.inner_text("#head-title") == "Layer 1, head 3"
    page.keyboard.press("[")
    address = page.evaluate("location.hash")
    again = Opened(browser, tmp_path / "again.html", (tmp_path / "report.html").read_text(), address).page
    state = "JSON.stringify([view.layer, view.head, view.query, view.mode, [...view.removed]])"
    assert again.evaluate(state) == page.evaluate(state) == '[1,2,39,"weight",[12,30]]'
    again.evaluate("location.hash = '#head=9.9.9.9&query=-1&show=<b>&without=x'")
    again.wait_for_timeout(50)
    assert again.evaluate(state) == page.evaluate(state), "an invalid link changes nothing"
    again.context.close()
    page.keyboard.press("Escape")
    assert page.evaluate("view.removed.size") == 0


def _check_files(page: Page) -> None:
    contents = {}
    for name in ("PNG", "SVG", "CSV", "JSON"):
        with page.expect_download() as download:
            page.locator("#save button", has_text=name).click()
        contents[name] = Path(download.value.path()).read_bytes()
    assert contents["PNG"].startswith(b"\x89PNG")
    assert b"<svg" in contents["SVG"]
    assert (
        contents["CSV"].decode().splitlines()[0] == "layer,head,query,key,token,weight,without,score,percentile,exact"
    )
    assert len(contents["CSV"].decode().splitlines()) >= 8 * 40
    assert b'"findings"' in contents["JSON"]


def test_screening_has_its_own_questions(browser: Browser, tmp_path: Path) -> None:
    record = inspect(multiscreen(), [TEXT])
    opened = Opened(browser, tmp_path / "report.html", inspect_page([record]))
    page = opened.page
    assert "keys that pass" in page.inner_text("#acceptance")
    best = page.locator("#keys tbody tr").first
    assert re.search(r"Is it relevant\? It is (accepted|refused): ", page.inner_text("#query-note"))
    best.locator("button").click()
    assert "Each key is weighed on its own: the other weights did not change." in page.inner_text("#query-note")
    assert page.inner_text("#stands-out") == "", "keys of an absolute mechanism are not compared with unrelated text"
    curves = record.tests["acceptance"]
    row = next(r for r in curves["heads"] if [r["layer"], r["head"]] == page.evaluate("[view.layer, view.head]"))
    page.locator("#width").focus()
    page.keyboard.press("End")
    assert f"At r = 1, {row['passing'][-1]:.3g}" in page.inner_text("#width-note")
    assert page.evaluate("thresholdOf(view)") == 0
    groups = page.evaluate("currentMap().meta.heads[mapOf(view).index].groups")
    closed = [group for group in groups if group["bound"] <= 0]
    note = page.inner_text("#groups-note")
    assert f" {len(closed)} of {len(groups)} groups lie outside its cap, so " in note
    assert f" {sum(group['size'] for group in closed)} of {sum(group['size'] for group in groups)} keys" in note
    assert page.locator(".groups .unopened").count() == len(closed)
    assert page.locator(".groups g").count() == len(groups) > 0
    assert page.locator(".windows .dot").count() == len(record.heads)
    assert opened.problems == []


def test_hostile_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    record = inspect(HostileTokens(), {HOSTILE: LINE})
    opened = Opened(browser, tmp_path / "report.html", inspect_page([record, record]))
    page = opened.page
    assert page.locator("img, #tokens b, #story b").count() == 0
    text = page.locator(".token[data-at='3']").text_content() or ""
    assert text == HOSTILE.replace("\u202e", "\\u202e") + "3", "the override is escaped, the letters stay"
    for place in (".token", "#keys bdi"):
        assert page.locator(place).first.evaluate("e => getComputedStyle(e).unicodeBidi") == "isolate"
    assert "<img" in page.inner_text("#about")
    assert "\u202e" not in (page.locator("body").text_content() or "")
    assert opened.problems == []


def test_several_models_are_compared(browser: Browser, softmax: Record, tmp_path: Path) -> None:
    records = [softmax, inspect(multiscreen(), [TEXT])]
    opened = Opened(browser, tmp_path / "report.html", inspect_page(records))
    page = opened.page
    names = [record.model.name for record in records]
    assert page.inner_text("#title") == f"Attention in {names[0]} and {names[1]}"
    assert page.inner_text("#story-of").startswith(f"Findings about {names[0]}.")
    rows = {row[0]: row[1:] for row in page.evaluate("CONTENT.rows.map(([title, values]) => [title, ...values])")}
    for title, values in comparison(records):
        for shown, value in zip(rows[title], values, strict=True):
            assert shown is None if value is None else shown == pytest.approx(value, rel=1e-4)
    cells = page.locator("#compared tr", has_text="change without the brightest key").locator("td").all_inner_texts()
    assert cells[2] == "0"
    differing = page.locator("[aria-label='findings that differ'] tbody tr")
    sinks = differing.filter(has_text="Sinks").locator("td").all_inner_texts()
    assert sinks[1].startswith(next(f.sentence for f in softmax.findings if f.topic == "Sinks")), (
        "only softmax has sinks"
    )
    assert sinks[2] == "–"
    threshold = differing.filter(has_text="threshold heads").locator("td").all_inner_texts()
    assert threshold[1] == "none"
    assert threshold[2].startswith(f"{len(records[1].heads)}: ")
    assert page.evaluate("CONTENT.matches.length") == len(matches(records)) == len(softmax.heads)
    page.evaluate("document.querySelector('#compared details').open = true")
    page.locator("#compared button", has_text="side by side").first.click()
    assert page.locator("canvas.map").count() == 3, "both heads read the same tokens, so there is a difference"
    page.select_option("#model", "1")
    assert page.inner_text("#story-of").startswith(f"Findings about {names[1]}.")
    assert page.inner_text("#about").startswith("tiny multiscreen: multiscreen, ")
    assert page.locator("#thumbnails button").count() == 6
    assert opened.problems == []


def test_checkpoints_of_a_run_are_a_film(browser: Browser, softmax: Record, tmp_path: Path) -> None:
    """Three frames whose heads differ in `first_mass`; the slider keeps the head, the query and the zoom."""
    records = []
    for step, share in ((100, 0.25), (200, 0.5), (300, 0.75)):
        heads = tuple(replace(head, values={**head.values, "first_mass": share}) for head in softmax.heads)
        model = replace(softmax.model, name=f"first, step {step}")
        records.append(replace(softmax, model=model, heads=heads, made={**softmax.made, "step": step}))
    opened = Opened(browser, tmp_path / "report.html", inspect_page(records))
    page = opened.page
    assert page.inner_text("#title") == "Attention in first during training"
    assert page.evaluate("view.model") == 2, "opens at the newest checkpoint"
    page.evaluate("selectCell(40, 3)")
    page.evaluate("zoom(0.5, 30, 40)")
    state = "JSON.stringify([view.layer, view.head, view.query, view.key, frame.span])"
    before = page.evaluate(state)
    page.locator("#film").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("[view.model, document.activeElement.id]") == [0, "film"], "the slider survives the redrawing"
    assert page.evaluate(state) == before
    assert page.inner_text("#frame") == "step 100"
    line = page.locator(".forming-line.line-0").first.get_attribute("d") or ""
    heights = [float(point.split()[1]) for point in line[1:].split("L")]
    assert heights == pytest.approx([170 - 150 * share for share in (0.25, 0.5, 0.75)], abs=0.1)
    page.locator("#play").click()
    page.locator("#frame", has_text="step 300").wait_for()
    assert opened.problems == []


def test_the_frame_of_a_notebook_works(browser: Browser, softmax: Record, tmp_path: Path) -> None:
    path = tmp_path / "notebook.html"
    path.write_text(f"<!doctype html><title>n</title>{softmax._repr_html_()}", encoding="utf-8")
    page = browser.new_context(offline=True).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.goto(path.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("[data-ready]")
    assert frame.locator("#thumbnails canvas").count() == len(softmax.heads)
    frame.locator("button[data-head='L1H2']").click()
    assert frame.inner_text("#head-title") == "Layer 1, head 2"
    top = "selector => document.querySelector(selector).getBoundingClientRect().top"
    assert frame.evaluate(top, "#thumbnails") < frame.evaluate(top, "#story"), "the maps come first"
    assert problems == []
