"""Tools of the page tests: a browser, and npm packages installed once below build/npm."""

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


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; without one, skip the test, or fail it in CI."""
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("no browser found: CI must install chromium (see .ci/run)")
        pytest.skip("NO BROWSER FOUND: the page was not tested; install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


def node() -> str:
    """Path of node; without it, skip the test, or fail it in CI."""
    program = shutil.which("node")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("no node found: CI must install it (see .ci/run)")
        pytest.skip("NO NODE FOUND: the page scripts were not tested; install nodejs")
    return program


def npm_file(package: str, path: str) -> Path:
    """Path of a file of an npm package; the package ("axe-core@4") is installed if it is missing."""
    name = package.rpartition("@")[0]
    file = NPM / "node_modules" / name / path
    if not file.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"NO NPM FOUND: {name} was not used; npm install --prefix {NPM} {package}")
        NPM.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(NPM), "--no-audit", "--no-fund", "--silent", package]
        process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if process.returncode or not file.exists():
            pytest.skip(f"NPM COULD NOT INSTALL {name}: it was not used ({process.stderr[-200:]})")
    return file


def axe() -> str:
    """Source of axe-core, which checks the accessibility of a page."""
    return npm_file("axe-core@4", "axe.min.js").read_text()
