"""Every kind of page is accessible, fits a phone, is small and opens fast."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser

from keysift.kernels.call import make_call
from keysift.lens.diagnostics.text_maps import MapCollector
from keysift.lens.experiments.patching import patch
from keysift.lens.inspection import inspect
from keysift.lens.layer_view import LayerView
from keysift.mechanisms import find
from keysift.records.lens import Record
from keysift.web.inspect.page import inspect_page
from tests.lens.models import LINE, multiscreen, transformer
from tests.web.browser import axe
from tests.web.inspect.opened import TEXT, Opened

pytestmark = pytest.mark.slow  # a browser each

AXE = (
    "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']}).then(r => r.violations.map(v => v.id + ' ' + v.nodes[0].html))"
)


def _pages(softmax: Record) -> dict[str, str]:
    """One page of every kind."""
    absolute = inspect(multiscreen(), [TEXT])
    frames = [replace(softmax, made={**softmax.made, "step": step}) for step in (100, 200)]
    return {
        "softmax": inspect_page([softmax]),
        "absolute": inspect_page([absolute]),
        "compared": inspect_page([softmax, absolute]),
        "film": inspect_page(frames),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_accessible_and_fit_a_phone(
    browser: Browser, softmax: Record, tmp_path: Path, scheme: str
) -> None:
    for kind, html in _pages(softmax).items():
        page = Opened(browser, tmp_path / f"{kind}.html", html, color_scheme=scheme, bypass_csp=True).page
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.evaluate(axe())
        assert page.evaluate(AXE) == [], kind
        page.set_viewport_size({"width": 390, "height": 800})
        page.evaluate("drawAll()")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, kind
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in paper[4:-1].split(",")) < 300) == (scheme == "dark")
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_patch_map_is_accessible_and_fits_a_phone(browser: Browser, tmp_path: Path, scheme: str) -> None:
    found = patch(transformer(), "the cat sat on a", "the dog sat on a", answer="x")
    path = tmp_path / "patch.html"
    found.show(path)
    page = browser.new_context(offline=True, color_scheme=scheme, bypass_csp=True).new_page()
    page.goto(path.as_uri())
    page.evaluate(axe())
    assert page.evaluate(AXE) == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.parametrize(("layers", "heads", "tokens", "most"), [(6, 6, 256, 2e6), (30, 9, 2048, 6e6)])
def test_a_page_of_many_heads_is_small_and_opens_fast(
    browser: Browser, tmp_path: Path, layers: int, heads: int, tokens: int, most: float
) -> None:
    """The sizes of stories15M and of SmolLM2-135M, with random scores, which compress worse than those of a model."""
    count = layers * heads
    record = inspect(transformer(), [LINE])
    collector = MapCollector(["token "] * tokens, count, softmax=True)
    draws = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, tokens, 8, generator=draws) for _ in range(3))
    collector.visit(LayerView(0, make_call(find("softmax"), q, k, v, scale=1.0), (0,)), 0)
    heads_of_layer, arrays = collector._layers[0]
    for layer in range(1, layers):
        renamed = [replace(head, layer=layer) for head in heads_of_layer]
        mixed = {name: np.random.default_rng(layer).permutation(values) for name, values in arrays.items()}
        collector._layers[layer] = (renamed, mixed)
    all_heads = tuple(replace(record.heads[i % 8], layer=i // heads, head=i % heads) for i in range(count))
    html = inspect_page([replace(record, heads=all_heads, tests={}, maps=(collector.maps(0),), findings=())])
    assert len(html) < most
    opened = Opened(browser, tmp_path / "report.html", html)
    page = opened.page
    assert opened.seconds < 5, "under 1 s on a machine that does nothing else (docs/lens_pictures.py prints it)"
    assert page.locator("#thumbnails button canvas").count() == count
    page.evaluate("document.querySelector('canvas.map').focus()")
    start = time.monotonic()
    for key in ("+", "+", "+", "ArrowUp", "ArrowLeft", "-", "0"):
        page.keyboard.press(key)
    assert time.monotonic() - start < 5
    assert opened.problems == []
