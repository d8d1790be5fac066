"""Report in a browser: opened from disk, no requests, no scripts, every figure visible at any width."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from keysift.cli.demos import recall as demo_recall
from keysift.web.report.page import report_page
from keysift.web.report.sweep_page import sweep_page
from tests.web.browser import axe, chromium
from tests.web.labels import cut_tables, label_faults, line_colours
from tests.web.report.records import report, sweep_comparison, sweep_report

pytestmark = pytest.mark.slow  # a browser


def open_page(browser: Browser, path: Path, *, scheme: str = "light", width: int = 1280) -> tuple[Page, list[str]]:
    """Open the page; the list collects its errors, console messages and requests."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    messages: list[str] = []
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("console", lambda message: messages.append(message.text))
    page.on("request", lambda request: messages.append(request.url) if request.url != path.as_uri() else None)
    page.on("dialog", lambda dialog: (messages.append("dialog"), dialog.dismiss()))
    page.goto(path.as_uri())
    return page, messages


def check_figures(page: Page) -> None:
    """Every drawing is fully visible, and the page does not scroll sideways."""
    drawings = page.locator("figure svg")
    assert drawings.count() >= 15
    window = page.evaluate("innerWidth")
    for number in range(drawings.count()):
        box = drawings.nth(number).bounding_box()
        assert box is not None
        assert box["width"] > 100 or drawings.nth(number).get_attribute("shape-rendering")
        assert box["height"] > 30
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= window + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= window


def check_all_layouts(browser: Browser, path: Path) -> None:
    """Light and dark, wide and narrow: every figure is visible; no console message and no request."""
    colours = set()
    for scheme in ("light", "dark"):
        for width in (1280, 380):
            page, messages = open_page(browser, path, scheme=scheme, width=width)
            check_figures(page)
            assert label_faults(page) == []
            assert messages == []
            colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            page.close()
    assert len(colours) == 2, "the dark scheme has the background of the light one"


def test_the_report_of_the_recall_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_recall, "INSTANCES", 1)
    monkeypatch.setattr(demo_recall, "DEPTHS", (0.5,))
    assert demo_recall.recall_demo(tmp_path / "demo", steps=2, json=True, named=True) == 0
    path = tmp_path / "demo" / "report.html"
    with chromium() as browser:
        check_all_layouts(browser, path)
        page, messages = open_page(browser, path)
        text = page.inner_text("body")
        assert "RoPE x64" in text
        assert "windows expanded" in text
        assert "A=" in page.inner_text("#relevance"), "the tokens of recall are missing below the maps"
        assert messages == []


def test_a_report_with_hostile_text_and_the_keyboard(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_page(report()), encoding="utf-8")
    with chromium() as browser:
        check_all_layouts(browser, path)
        page, messages = open_page(browser, path)
        assert "<script>alert(1)</script>" in page.inner_text("#relevance .tokens span >> nth=0")
        assert "<script>alert(1)</script>" in page.inner_text("#samples pre >> nth=0")
        page.keyboard.press("Tab")
        focused = set()
        for _ in range(120):
            focused.add(page.evaluate("document.activeElement.tagName"))
            page.keyboard.press("Tab")
        assert {"A", "SUMMARY", "PRE"} <= focused
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details[open] td").first.is_visible()
        page.evaluate(axe())
        result = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']})")
        assert [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in result["violations"]] == []
        assert messages == []
        drawn = page.locator(".map svg").first
        before = drawn.screenshot()
        drawn.evaluate("svg => svg.querySelectorAll('mask image').forEach(image => image.remove())")
        assert drawn.screenshot() != before, "the browser does not draw the shades of a relevance map"


def test_labels_of_a_sweep_do_not_overlap_and_colours_are_those_of_the_models(tmp_path: Path) -> None:
    pages = {"sweep": sweep_page("Sweep", sweep_comparison()), "report": report_page(sweep_report())}
    with chromium() as browser:
        for name, text in pages.items():
            path = tmp_path / f"{name}.html"
            path.write_text(text, encoding="utf-8")
            for width in (1280, 380):
                page, messages = open_page(browser, path, width=width)
                assert label_faults(page) == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                if width == 1280:
                    assert cut_tables(page) == []
                    table = page.locator("table").first.bounding_box()
                    assert table is not None
                    assert table["y"] + table["height"] < 900, "the results are not on the first screen"
                    multiscreen, transformer = (
                        {colour for name, of in line_colours(page).items() if name.startswith(arch) for colour in of}
                        for arch in ("multiscreen", "transformer")
                    )
                    assert (len(multiscreen), len(transformer), len(multiscreen | transformer)) == (1, 1, 2)
                assert messages == []
                page.close()
