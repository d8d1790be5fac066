"""The site in a browser without a network, opened from disk: run by `make test-site`, which builds it first."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from keysift.mechanisms import MECHANISMS
from tests.web.browser import axe, chromium

SITE = Path(__file__).parents[2] / "build" / "site"
LOOKED_AT = ("index", "reference", "docs/mechanisms/screening", "docs/scale", "evidence/index", "docs/performance")
AXE = """axe.run(document, {runOnly: ['wcag2a', 'wcag2aa'], iframes: false}).then(result => result.violations
    .filter(v => ['serious', 'critical'].includes(v.impact)).map(v => v.id + ': ' + v.nodes[0].html))"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SITE" not in os.environ, reason="NO SITE: make test-site builds and tests it"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def opened(browser: Browser, name: str, width: int = 1280, scheme: str = "light") -> tuple[Page, list[str]]:
    """A page, and the errors that it reports."""
    context = browser.new_context(
        viewport={"width": width, "height": 844},
        color_scheme=scheme,  # type: ignore[arg-type]
        offline=True,
    )
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(request.url))
    page.goto((SITE / f"{name}.html").as_uri())
    return page, errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_are_accessible_and_as_wide_as_the_screen(browser: Browser, width: int, scheme: str) -> None:
    source = axe()
    for name in LOOKED_AT:
        page, errors = opened(browser, name, width, scheme)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert not errors, (name, errors)
        page.evaluate(source)  # axe then fails to read style sheets again, which is no error of the page
        assert page.evaluate(AXE) == [], name
        page.context.close()


def test_the_landing_page_shows_the_result_and_a_working_playground(browser: Browser) -> None:
    page, errors = opened(browser, "index")
    assert page.evaluate("[...document.images].some(i => i.src.endsWith('headline.svg') && i.naturalWidth > 0)")
    frame = page.locator("iframe.playground")
    frame.scroll_into_view_if_needed()
    inside = frame.content_frame
    inside.get_by_role("button", name="all equal").click()
    inside.get_by_text("Screening", exact=True).first.wait_for()
    assert not errors


def test_search_finds_a_page_without_a_network(browser: Browser) -> None:
    page, errors = opened(browser, "docs/scale")
    page.locator("input.md-search__input").click()
    page.keyboard.type("alpha-entmax")
    result = page.locator(".md-search-result__link").first
    result.wait_for(timeout=20_000)
    assert "entmax" in (result.get_attribute("href") or "")
    assert not errors


def test_every_mechanism_has_formula_curve_promises_and_example() -> None:
    pages = {
        file.stem: file.read_text()
        for file in (SITE / "docs" / "mechanisms").glob("*.html")
        if file.stem not in ("index", "adding")
    }
    for stem, text in pages.items():
        for wanted in ("example", "weight-curve", "promises", "derivation"):
            assert f'<h2 id="{wanted}">' in text, (stem, wanted)
    drawn = {name for text in pages.values() for name in re.findall(r"<figcaption><code>(.*?)</code>", text)}
    assert set(MECHANISMS.names()) - drawn == set()


def test_the_reference_has_every_public_name() -> None:
    import keysift

    text = (SITE / "reference.html").read_text()
    for name in keysift.__all__:
        assert name.startswith("__") or re.search(rf'id="[\w.]*\b{name}"', text), name
