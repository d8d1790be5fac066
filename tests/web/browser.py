"""A real browser for the tests of pages, and a check of accessibility."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
NPM = Path(__file__).parent.parent.parent / "build" / "npm"  # ignored by git
AXE = "axe-core@4"


@contextmanager
def chromium() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("no browser found: CI must install chromium (see .ci/run)")
        pytest.skip("NO BROWSER FOUND: the page was not tested; install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


def axe() -> str:
    """The source of axe-core, fetched once by npm; without npm the test that asks for it is skipped."""
    source = NPM / "node_modules" / "axe-core" / "axe.min.js"
    if not source.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"NO NPM FOUND: accessibility was not checked; npm install --prefix {NPM} {AXE}")
        NPM.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(NPM), "--no-audit", "--no-fund", "--silent", AXE]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode or not source.exists():
            pytest.skip(f"NPM COULD NOT INSTALL axe-core: accessibility was not checked ({done.stderr[-200:]})")
    return source.read_text()
