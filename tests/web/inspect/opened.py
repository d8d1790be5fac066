"""A page of an inspection that is opened without a network."""

import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from tests.lens.models import LINE

TEXT = f"{LINE}\n{LINE}"


class Opened:
    """A page, with its errors and the requests it made; the network is off."""

    def __init__(self, browser: Browser, path: Path, html: str, address: str = "", **options: Any) -> None:
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(offline=True, accept_downloads=True, **options)
        self.page: Page = context.new_page()
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", lambda m: self.problems.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on(
            "request",
            lambda r: self.problems.append(r.url) if not r.url.startswith(("file:", "blob:", "data:")) else None,
        )
        self.page.on("dialog", lambda dialog: (self.problems.append("dialog"), dialog.dismiss()))
        start = time.monotonic()
        self.page.goto(path.as_uri() + address)
        self.page.wait_for_selector("[data-ready]")
        self.seconds = time.monotonic() - start
