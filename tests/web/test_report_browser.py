"""The report in a real browser, from disk: nothing fetched, nothing run, every figure seen at any width."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from keysift.cli import demo_recall
from keysift.web.report_page import report_page
from tests.web.browser import axe, chromium
from tests.web.reports import report

pytestmark = pytest.mark.slow  # a browser


def opened(browser: Browser, path: Path, *, scheme: str = "light", width: int = 1280) -> tuple[Page, list[str]]:
    """The page, and whatever it complained about or asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    seen: list[str] = []
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("console", lambda message: seen.append(message.text))
    page.on("request", lambda request: seen.append(request.url) if request.url != path.as_uri() else None)
    page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
    page.goto(path.as_uri())
    return page, seen


def check_figures(page: Page) -> None:
    """Every drawing is seen whole, and only boxes that may scroll are wider than the window."""
    drawings = page.locator("figure svg")
    assert drawings.count() >= 15
    inside = page.evaluate("innerWidth")
    for number in range(drawings.count()):
        box = drawings.nth(number).bounding_box()
        assert box is not None
        assert box["width"] > 100 or drawings.nth(number).get_attribute("shape-rendering")
        assert box["height"] > 30
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= inside + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= inside


def check_everywhere(browser: Browser, path: Path) -> None:
    """Light and dark, wide and narrow: every figure is seen, and nothing is said on the console or fetched."""
    colours = set()
    for scheme in ("light", "dark"):
        for width in (1280, 380):
            page, seen = opened(browser, path, scheme=scheme, width=width)
            check_figures(page)
            assert seen == []
            colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            page.close()
    assert len(colours) == 2, "dark is dark"


def test_a_real_demo_in_a_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_recall, "INSTANCES", 1)
    monkeypatch.setattr(demo_recall, "DEPTHS", (0.5,))
    assert demo_recall.recall_demo(tmp_path / "demo", steps=2, json=True, named=True) == 0
    path = tmp_path / "demo" / "report.html"
    with chromium() as browser:
        check_everywhere(browser, path)
        page, seen = opened(browser, path)
        told = page.inner_text("body")
        assert "RoPE x64" in told
        assert "windows expanded" in told
        assert "A=" in page.inner_text("#relevance"), "tokens of recall stand beside their maps"
        assert seen == []


def test_a_report_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_page(report()), encoding="utf-8")
    with chromium() as browser:
        check_everywhere(browser, path)
        page, seen = opened(browser, path)
        assert "<script>alert(1)</script>" in page.inner_text("#relevance .tokens span >> nth=0")
        assert "<script>alert(1)</script>" in page.inner_text("#samples pre >> nth=0")
        page.keyboard.press("Tab")
        reached = set()
        for _ in range(120):
            reached.add(page.evaluate("document.activeElement.tagName"))
            page.keyboard.press("Tab")
        assert {"A", "SUMMARY", "PRE"} <= reached
        page.locator("summary").first.focus()
        page.keyboard.press("Enter")
        assert page.locator("details[open] td").first.is_visible()
        page.evaluate(axe())
        found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']})")
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == []
        assert seen == []
