"""A session with the playground in a browser: fixtures, and a page that records requests and errors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from keysift.cli.main import main
from tests.web.browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("play") / "play.html"
    with pytest.raises(SystemExit) as ended:
        main(["play", "--no-open", "-o", str(path)])
    assert ended.value.code == 0
    return path


class Session:
    """A page with its requests and console errors."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.page: Page = browser.new_context(accept_downloads=True, **options).new_page()
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("[data-mechanism=softmax] svg rect.bar")

    def weight(self, mechanism: str) -> list[str]:
        return self.page.locator(f"[data-mechanism={mechanism}] svg text.weight").all_text_contents()

    def marks(self, mechanism: str) -> list[str]:
        return self.page.locator(f"[data-mechanism={mechanism}] svg text.mark").all_text_contents()

    def fact(self, mechanism: str, label: str) -> str:
        return self.page.locator(f"[data-mechanism={mechanism}] .facts div", has_text=label).locator("dd").inner_text()

    def drag(self, selector: str, dx: float, dy: float) -> None:
        box = self.page.locator(selector).bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + dx, y + dy, steps=5)
        self.page.mouse.up()
        self.settle()

    def until(self, expression: str) -> None:
        """Wait until an expression is true. It is polled from outside: the page forbids evaluating text inside it."""
        for _ in range(200):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"still false: {expression}")

    def settle(self) -> None:
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture
def session(browser: Browser, file: Path) -> Iterator[Session]:
    started = Session(browser, file, viewport={"width": 1280, "height": 1000})
    yield started
    assert started.errors == []
    assert [url for url in started.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    started.page.context.close()
