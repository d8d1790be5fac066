"""Draw the pictures of docs/lens.md from a report page, and print its size and how fast it opens.

Needs playwright, Pillow and chromium.

keysift inspect stories15M --text story.txt -o report.html
python -m docs.lens_pictures report.html
"""

import io
import shutil
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent
WIDTH = 1200
COLOURS = 64  # a palette keeps the files small


def draw(report: Path) -> None:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000})
        start = time.monotonic()
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("[data-ready]")
        seconds = time.monotonic() - start
        sys.stdout.write(f"{report}: {report.stat().st_size / 1e6:.2f} MB, opened in {seconds:.2f} s\n")
        _save(page, "lens-story.png", "#title", "#thumbnails")
        page.get_by_label("Absolute", exact=True).check(force=True)
        _save(page, "lens-head.png", "#head-title", "#readout", below=480)
        browser.close()


def _save(page: Page, name: str, first: str, last: str, below: int = 0) -> None:
    """A picture of the page from the top of one element to the bottom of another, or `below` pixels from the top."""
    page.evaluate("scrollTo(0, 0)")  # boxes are relative to the window
    page.wait_for_timeout(300)
    top = page.locator(first).bounding_box()
    bottom = page.locator(last).bounding_box()
    assert top is not None
    assert bottom is not None
    height = max(below, bottom["y"] + bottom["height"] - top["y"])
    shot = page.screenshot(full_page=True, clip={"x": 0, "y": top["y"] - 16, "width": WIDTH, "height": height + 32})
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS).save(FOLDER / name, optimize=True)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
