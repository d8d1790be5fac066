"""Demo page in a browser: opened from disk, without any request."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from keysift.records.competitors import Context, ContextExperiment
from keysift.verify.competitors import context_experiment
from keysift.web.demo.page import demo_page
from tests.web.browser import chromium


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as browser:
        yield browser.new_page()


@pytest.fixture(scope="module")
def experiment() -> ContextExperiment:
    return context_experiment()


def test_opens_from_disk_and_fetches_nothing(page: Page, experiment: ContextExperiment, tmp_path: Path) -> None:
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    file = tmp_path / "demo.html"
    file.write_text(demo_page(experiment))
    page.goto(file.as_uri())
    assert requests == [file.as_uri()]
    assert errors == []
    assert page.locator("tbody tr").count() == len(experiment.rows)
    assert page.locator("svg").count() == len(experiment.rows) * len(experiment.contexts)
    # The page marks and colours the weights that changed in the record.
    marked = page.locator("svg text", has_text=re.compile("[▲▼]")).count()
    assert marked == sum(sum(marks) for row in experiment.rows for marks in row.moved)
    assert page.locator("rect[fill='var(--moved)']").count() == marked
    softmax = page.locator("tbody tr", has_text="Softmax").first
    assert softmax.locator("svg").nth(1).get_attribute("aria-label") == (
        "Softmax, a third key is added: 0.629 (changed), 0.231 (changed), 0.140"
    )


def test_a_phone_shows_all_contexts_of_a_mechanism(page: Page, experiment: ContextExperiment, tmp_path: Path) -> None:
    """All four contexts of a mechanism fit the width of the screen, have a title and are large enough to read."""
    file = tmp_path / "demo.html"
    file.write_text(demo_page(experiment))
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    row = page.locator("tbody tr").first
    charts = row.locator("svg")
    for index in range(len(experiment.contexts)):
        box = charts.nth(index).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["width"] >= 0.9 * float(charts.nth(index).get_attribute("width") or 0), "scaled down too far to read"
    caption = "getComputedStyle(document.querySelectorAll('tbody td')[1], '::before').content"
    assert page.evaluate(caption) == f'"{experiment.contexts[1].title}"'
    card = row.bounding_box()
    assert card is not None
    assert card["height"] < 844, "the four contexts do not fit on the screen"


@pytest.mark.slow
def test_titles_are_escaped() -> None:
    html = demo_page(ContextExperiment(contexts=(Context(title="<b>&", scores=(1.0,), cosines=(0.5,)),), rows=()))
    assert "&lt;b&gt;&amp;" in html
    assert "<b>&" not in html
