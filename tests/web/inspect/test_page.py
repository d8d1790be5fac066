"""Inspection page in a browser: no requests, text stays text, and removing a key is exact."""

import base64
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from keysift.lens.diagnostics.pairs import Pairs, pairs
from playwright.sync_api import Page

from keysift.cli.main import main
from keysift.lens.diagnostics.removal import weights_without
from keysift.lens.inspection import inspect
from keysift.lens.layer_view import LayerView
from keysift.records.lens import Record
from keysift.web.inspect.page import inspect_page
from tests.hub.transformers_models import WORDS, save_model
from tests.lens.models import LINE, multiscreen, transformer
from tests.web.browser import axe, chromium

pytestmark = pytest.mark.slow  # a browser each

HOSTILE = "</script><img src=x onerror=alert(1)> \u202e\u05e9\u05dc\u05d5\u05dd <b>&amp;"


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with chromium() as browser:
        yield browser.new_page()


class HostileTokens:
    """A model whose tokens are all hostile texts."""

    def __init__(self) -> None:
        self.inner = transformer()
        self.info = self.inner.info

    def encode(self, text: str) -> list[int]:
        self.text = text
        return [ord(c) % 250 for c in text]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [f"{HOSTILE}{i}" for i in range(len(ids))]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.pieces(ids))

    def targets(self, ids: Sequence[int]) -> list[int]:
        return self.inner.targets(ids)

    def run(self, texts: Sequence[Sequence[int]], visit: Any) -> Any:
        return self.inner.run(texts, visit)


def open_page(page: Page, path: Path, html: str) -> list[str]:
    """Open the page; returns its errors and requests."""
    messages: list[str] = []
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: messages.append(request.url) if request.url != path.as_uri() else None)
    page.on("dialog", lambda dialog: (messages.append("dialog"), dialog.dismiss()))
    path.write_text(html, encoding="utf-8")
    page.goto(path.as_uri())
    return messages


@pytest.fixture(scope="module")
def softmax() -> tuple[Record, dict[str, Any]]:
    model = transformer()
    return inspect(model, [LINE], swap=["sparsemax"]), pairs(model, list(LINE.encode()))


def test_numbers_of_a_query_and_an_exact_removal(
    browser_page: Page, softmax: tuple[Record, dict[str, Any]], tmp_path: Path
) -> None:
    page, (record, stored) = browser_page, softmax
    assert open_page(page, tmp_path / "report.html", inspect_page([record], [stored])) == []
    assert page.locator("#overview button").count() == 8
    assert page.locator("#findings li").count() == len(record.findings)
    page.locator("#overview button[aria-label^='layer 1, head 2:']").click()
    assert page.inner_text("#head-title") == "Layer 1, head 2"
    page.locator(".token[data-at='30']").focus()
    assert page.inner_text("#query-title").startswith("Keys of query 30")
    expected: dict[str, Any] = {}

    def visit(layer: LayerView) -> None:
        for block in layer.blocks():
            if layer.layer == 1:
                expected["before"] = block.weights_HTS[2, 30].double().numpy()
                expected["after"] = weights_without(block, torch.full_like(block.n_HT, 12))[2, 30].double().numpy()
                expected["scores"] = block.scores_HTS[2, 30].double().numpy()

    transformer().run([list(LINE.encode())], visit)
    rows = page.evaluate("storedRow(1, 2, 30).keys")
    assert len(rows) == 31
    for row in rows:
        assert row["weight"] == pytest.approx(expected["before"][row["key"]], abs=1e-6)
        assert row["score"] == pytest.approx(expected["scores"][row["key"]], abs=1e-5)
    page.locator("#keys [data-key='12'] button").click()
    after = page.evaluate("weightsWithout(storedRow(1, 2, 30), view.removed)")
    assert [expected["after"][row["key"]] for row in rows] == pytest.approx(after, abs=1e-6)
    assert "although their scores did not" in page.inner_text("#query-note")
    assert page.inner_text("#keys [data-key='12'] button") == "restore"
    table = record.tests["absolute_percentile"]["scores"]["1"][2]
    levels = record.tests["absolute_percentile"]["levels"]
    for score in (-99.0, table[3] + 0.01, 99.0):
        percentile = float(np.interp(score, table, levels))
        assert page.evaluate(f"scorePercentile(1, 2, {score})") == pytest.approx(percentile, abs=1e-4)
    page.select_option("#diagnostic", "first_mass")
    value = record.head(1, 2).values["first_mass"]
    label = page.locator("#overview button[aria-pressed='true']").get_attribute("aria-label") or ""
    assert label.startswith("layer 1, head 2: sink mass ")
    assert float(label.split("sink mass ")[1].split(",")[0]) == pytest.approx(value, abs=5e-4)
    for title in (
        "Large weights with low scores",
        "Leave one key out",
        "Dilution",
        "Nothing relevant",
        "How many keys are needed",
        "Other mechanisms",
    ):
        assert title in page.inner_text("#tests")


def test_white_space_of_tokens_is_visible(browser_page: Page, tmp_path: Path) -> None:
    model = transformer()
    text = "one two\nthree four\n"
    record, stored = inspect(model, [text]), pairs(model, list(text.encode()))
    example = record.tests["absolute_percentile"]["only_relatively_bright"][0]
    example.update(query_token="\n", key_token=" two")
    assert open_page(browser_page, tmp_path / "report.html", inspect_page([record], [stored])) == []
    browser_page.locator(".token[data-at='7']").focus()
    assert browser_page.locator(".token[data-at='7']").inner_text().startswith("\u23ce")
    assert browser_page.inner_text("#query-title bdi") == "\u23ce"
    assert browser_page.inner_text("#keys [data-key='7'] bdi") == "\u23ce"
    assert browser_page.inner_text("#keys [data-key='3'] bdi") == "\u00b7"
    cells = browser_page.locator("#tests tbody tr >> nth=0").locator("bdi").all_inner_texts()
    assert cells == [f"{example['query']} \u23ce", f"{example['key']} \u00b7two"]


def test_removing_a_key_of_screening_changes_no_other_weight(browser_page: Page, tmp_path: Path) -> None:
    model = multiscreen()
    record, stored = inspect(model, [LINE], tests=False), pairs(model, list(LINE.encode()))
    assert open_page(browser_page, tmp_path / "report.html", inspect_page([record], [stored])) == []
    browser_page.locator("#keys button").first.click()
    assert "Each key is weighed on its own: the other weights did not change." in browser_page.inner_text("#query-note")
    assert "This record does not contain the tests" in browser_page.inner_text("#tests")


def test_hostile_text_stays_text(browser_page: Page, tmp_path: Path) -> None:
    model = HostileTokens()
    record = inspect(model, {HOSTILE: LINE})
    stored = pairs(model, model.encode(LINE))
    page = browser_page
    assert open_page(page, tmp_path / "report.html", inspect_page([record], [stored])) == []
    assert page.locator("img").count() == 0
    assert page.locator("#tokens b").count() == 0
    text = page.locator(".token[data-at='3']").text_content() or ""
    assert text == HOSTILE.replace("\u202e", "\\u202e") + "3", "the override is escaped, the letters stay"
    for place in (".token", "#keys bdi"):
        kind = page.locator(place).first.evaluate("e => getComputedStyle(e).unicodeBidi")
        assert kind == "isolate"
    assert "<img" in page.inner_text("#about")
    assert "\u202e" not in (page.locator("body").text_content() or "").replace("\\u202e", "")


def test_several_models_are_compared(
    browser_page: Page, softmax: tuple[Record, dict[str, Any]], tmp_path: Path
) -> None:
    model = multiscreen()
    records = [softmax[0], inspect(model, [LINE])]
    stored = [softmax[1], pairs(model, list(LINE.encode()))]
    page = browser_page
    assert open_page(page, tmp_path / "report.html", inspect_page(records, stored)) == []
    changes = page.locator("#compared tr", has_text="change without the brightest key").locator("td").all_inner_texts()
    assert changes[1] == "0"
    assert float(changes[0]) > 0
    names = [item.model.name for item in records]
    assert page.inner_text("#title") == f"Attention in {names[0]} and {names[1]}"
    listed = page.locator("#findings > li").all()
    assert [item.locator("strong").inner_text() for item in listed] == names
    for item, shown in zip(listed, records, strict=True):
        assert item.locator("li").all_inner_texts() == list(shown.findings)
    bits = page.locator("#compared tr", has_text="loss, bits per byte").locator("td").all_inner_texts()
    assert [float(cell) for cell in bits] == pytest.approx([item.texts[0].bits_per_byte for item in records], rel=0.005)
    page.select_option("#model", "1")
    assert page.inner_text("#about").startswith("tiny multiscreen: multiscreen, ")
    assert page.locator("#overview button").count() == 6


@pytest.mark.slow
def test_a_page_of_many_heads_is_small_and_opens_fast(browser_page: Page, tmp_path: Path) -> None:
    """270 heads on 2,048 tokens, as SmolLM2-135M has, with synthetic numbers."""
    from dataclasses import replace

    model = transformer()
    record = inspect(model, [LINE])
    heads = tuple(replace(record.heads[i % 8], layer=i // 9, head=i % 9) for i in range(270))
    table = record.tests["absolute_percentile"]
    tests = {
        **record.tests,
        "absolute_percentile": {**table, "scores": {str(i): table["scores"]["0"] * 3 for i in range(30)}},
    }
    selection = Pairs(["token "] * 2048, 270)
    rows, keys = len(selection.queries), selection.keys
    head = {
        "removal": "share",
        "keys": base64.b64encode(np.tile(np.arange(keys, dtype="<i4"), rows).tobytes()).decode(),
        "scores": base64.b64encode(np.random.default_rng(0).normal(size=rows * keys).astype("<f4").tobytes()).decode(),
        "weights": base64.b64encode(np.full(rows * keys, 1 / keys, "<f4").tobytes()).decode(),
        "seen": [2048] * rows,
    }
    stored = {
        "tokens": selection.pieces,
        "queries": selection.queries,
        "keys": keys,
        "heads": [{"layer": i // 9, "head": i % 9, **head} for i in range(270)],
    }
    html = inspect_page([replace(record, heads=heads, tests=tests)], [stored])
    assert len(html) < 20e6
    start = time.monotonic()
    assert open_page(browser_page, tmp_path / "report.html", html) == []
    browser_page.wait_for_selector("#overview button")
    assert time.monotonic() - start < 3
    assert browser_page.locator("#overview button").count() == 270


def test_inspecting_a_gpt2_on_2048_tokens(browser_page: Page, tmp_path: Path) -> None:
    """From the command to the page: 72 heads with random weights."""
    path = save_model(tmp_path / "gpt2", "gpt2", n_layer=6, n_head=12, n_embd=96, n_positions=2048)
    report = tmp_path / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(path), "--text", " ".join(WORDS[1:]) * 200, "--tokens", "2048", "-o", str(report)])
    assert not ended.value.code
    assert report.stat().st_size < 20e6
    page = browser_page
    start = time.monotonic()
    assert open_page(page, tmp_path / "again.html", report.read_text(encoding="utf-8")) == []
    page.wait_for_selector("#overview button")
    assert time.monotonic() - start < 3
    assert page.locator("#overview button").count() == 72
    assert "2,048 tokens" in page.inner_text("#about")
    stored = page.locator(".token.stored")
    assert stored.count() > 100
    stored.first.hover()
    assert page.locator("#keys tbody tr").count() > 0


@pytest.mark.slow
def test_the_page_is_accessible_and_fits_a_phone(
    browser_page: Page, softmax: tuple[Record, dict[str, Any]], tmp_path: Path
) -> None:
    page = browser_page
    source = axe()
    open_page(page, tmp_path / "report.html", inspect_page([softmax[0]], [softmax[1]]))
    page.evaluate(source)
    violations = page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']}).then(r => r.violations.map(v => v.id))"
    )
    assert violations == []
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
