"""The page in a real browser, from disk, with nothing fetched from anywhere."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from keysift.evaluate.context import context_experiment
from keysift.evaluate.record import Context, ContextExperiment
from keysift.web.context_page import context_page, number

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("no browser found: CI must install chromium (see .ci/run)")
        pytest.skip("NO BROWSER FOUND: the page was not tested; install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser.new_page()
        browser.close()


@pytest.fixture(scope="module")
def experiment() -> ContextExperiment:
    return context_experiment()


def test_opens_from_disk_and_fetches_nothing(page: Page, experiment: ContextExperiment, tmp_path: Path) -> None:
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    file = tmp_path / "demo.html"
    file.write_text(context_page(experiment))
    page.goto(file.as_uri())
    assert requests == [file.as_uri()]
    assert errors == []
    assert page.locator("tbody tr").count() == len(experiment.rows)
    assert page.locator("svg").count() == len(experiment.rows) * len(experiment.contexts)
    # What is marked on the page is what moved in the record, and it is drawn in another colour.
    marked = page.locator("svg text", has_text=re.compile("[▲▼]")).count()
    assert marked == sum(sum(marks) for row in experiment.rows for marks in row.moved)
    assert page.locator("rect[fill='var(--moved)']").count() == marked
    softmax = page.locator("tbody tr", has_text="Softmax").first
    assert softmax.locator("svg").nth(1).get_attribute("aria-label") == "Softmax: .629 (moved), .231 (moved), .140"


def test_fits_a_phone(page: Page, experiment: ContextExperiment, tmp_path: Path) -> None:
    file = tmp_path / "demo.html"
    file.write_text(context_page(experiment))
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the table scrolls in its own box"


def test_titles_are_escaped() -> None:
    html = context_page(ContextExperiment(contexts=(Context(title="<b>&", scores=(1.0,)),), rows=()))
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&" not in html


@pytest.mark.parametrize(
    ("weight", "text"),
    [(0.0, "0"), (1e-9, ".000"), (0.5, ".500"), (-0.25, "-.250"), (1.0, "1.000"), (22025.4, "22025"), (25.0, "25.0")],
)
def test_numbers_are_short_and_honest_about_zero(weight: float, text: str) -> None:
    assert number(weight) == text
