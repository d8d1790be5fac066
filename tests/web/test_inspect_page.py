"""The report in a real browser, from disk: it fetches nothing, runs nothing a text says, and its removals are exact."""

import base64
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from keysift.cli.main import main
from keysift.lens.examine import inspect
from keysift.lens.leave_out import position, without
from keysift.lens.pairs import Pairs, pairs
from keysift.lens.reading import Reading
from keysift.lens.record import Record
from keysift.web.inspect_page import inspect_page
from tests.hub.models import WORDS, saved
from tests.lens.subjects import LINE, multiscreen, transformer
from tests.web.browser import axe, chromium

pytestmark = pytest.mark.slow  # a browser each

HOSTILE = "</script><img src=x onerror=alert(1)> \u202e\u05e9\u05dc\u05d5\u05dd <b>&amp;"


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    with chromium() as browser:
        yield browser.new_page()


class Whole:
    """A subject whose tokens are characters, so that hostile ones stand in the page one by one."""

    def __init__(self) -> None:
        self.inner = transformer()
        self.about = self.inner.about

    def encode(self, text: str) -> list[int]:
        self.text = text
        return [ord(c) % 250 for c in text]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [f"{HOSTILE}{i}" for i in range(len(ids))]

    def targets(self, ids: Sequence[int]) -> list[int]:
        return self.inner.targets(ids)

    def run(self, texts: Sequence[Sequence[int]], visit: Any) -> Any:
        return self.inner.run(texts, visit)


def opened(page: Page, path: Path, html: str) -> list[str]:
    """Errors and requests while the page opened."""
    seen: list[str] = []
    page.on("pageerror", lambda error: seen.append(str(error)))
    page.on("console", lambda message: seen.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: seen.append(request.url) if request.url != path.as_uri() else None)
    page.on("dialog", lambda dialog: (seen.append("dialog"), dialog.dismiss()))
    path.write_text(html, encoding="utf-8")
    page.goto(path.as_uri())
    return seen


@pytest.fixture(scope="module")
def softmax() -> tuple[Record, dict[str, Any]]:
    subject = transformer()
    return inspect(subject, [LINE], swap=["sparsemax"]), pairs(subject, list(LINE.encode()))


def test_numbers_of_a_query_and_an_exact_removal(
    browser_page: Page, softmax: tuple[Record, dict[str, Any]], tmp_path: Path
) -> None:
    page, (record, stored) = browser_page, softmax
    assert opened(page, tmp_path / "report.html", inspect_page([record], [stored])) == []
    assert page.locator("#overview button").count() == 8
    assert page.locator("#findings li").count() == len(record.findings)
    page.locator("#overview button[aria-label^='layer 1, head 2:']").click()
    assert page.inner_text("#head-title") == "Layer 1, head 2"
    page.locator(".token[data-at='30']").focus()
    assert page.inner_text("#query-title").startswith("Keys of query 30")
    found: dict[str, Any] = {}

    def look(reading: Reading) -> None:
        for block in reading.blocks():
            if reading.layer == 1:
                found["before"] = block.weights_HTS[2, 30].double().numpy()
                found["after"] = without(block, position(12)(block))[2, 30].double().numpy()
                found["scores"] = block.scores_HTS[2, 30].double().numpy()

    transformer().run([list(LINE.encode())], look)
    shown = page.evaluate("rowOf(1, 2, 30).keys")
    assert len(shown) == 31
    for row in shown:
        assert row["weight"] == pytest.approx(found["before"][row["key"]], abs=1e-6)
        assert row["score"] == pytest.approx(found["scores"][row["key"]], abs=1e-5)
    page.locator("#keys [data-key='12'] button").click()
    after = page.evaluate("without(rowOf(1, 2, 30), view.gone)")
    assert [found["after"][row["key"]] for row in shown] == pytest.approx(after, abs=1e-6)
    assert "although their scores did not" in page.inner_text("#query-note")
    assert page.inner_text("#keys [data-key='12'] button") == "put back"
    table = record.tests["absolute_percentile"]["scores"]["1"][2]
    levels = record.tests["absolute_percentile"]["levels"]
    for score in (-99.0, table[3] + 0.01, 99.0):
        wanted = float(np.interp(score, table, levels))
        assert page.evaluate(f"percentileOf(1, 2, {score})") == pytest.approx(wanted, abs=1e-4)
    page.select_option("#diagnostic", "first_mass")
    value = record.head(1, 2).values["first_mass"]
    label = page.locator("#overview button[aria-pressed='true']").get_attribute("aria-label") or ""
    assert label.startswith("layer 1, head 2: sink mass ")
    assert float(label.split("sink mass ")[1].split(",")[0]) == pytest.approx(value, abs=5e-4)
    for words in (
        "Only relatively bright",
        "Leave a key out",
        "Dilution",
        "Nothing relevant",
        "How few keys",
        "What if",
    ):
        assert words in page.inner_text("#tests")


def test_where_keys_are_judged_alone_nothing_moves(browser_page: Page, tmp_path: Path) -> None:
    subject = multiscreen()
    record, stored = inspect(subject, [LINE], tests=False), pairs(subject, list(LINE.encode()))
    assert opened(browser_page, tmp_path / "report.html", inspect_page([record], [stored])) == []
    browser_page.locator("#keys button").first.click()
    assert "Each key is judged alone: the others did not move." in browser_page.inner_text("#query-note")
    assert "The tests were left out" in browser_page.inner_text("#tests")


def test_hostile_text_is_only_text(browser_page: Page, tmp_path: Path) -> None:
    subject = Whole()
    record = inspect(subject, {HOSTILE: LINE})
    stored = pairs(subject, subject.encode(LINE))
    page = browser_page
    assert opened(page, tmp_path / "report.html", inspect_page([record], [stored])) == []
    assert page.locator("img").count() == 0
    assert page.locator("#tokens b").count() == 0
    text = page.locator(".token[data-at='3']").text_content() or ""
    assert text == HOSTILE.replace("\u202e", "\\u202e") + "3", "the override is spelled out, the letters stay"
    for place in (".token", "#keys bdi"):
        kind = page.locator(place).first.evaluate("e => getComputedStyle(e).unicodeBidi")
        assert kind == "isolate"
    assert "<img" in page.inner_text("#about")
    assert "\u202e" not in (page.locator("body").text_content() or "").replace("\\u202e", "")


def test_models_side_by_side(browser_page: Page, softmax: tuple[Record, dict[str, Any]], tmp_path: Path) -> None:
    subject = multiscreen()
    records = [softmax[0], inspect(subject, [LINE])]
    stored = [softmax[1], pairs(subject, list(LINE.encode()))]
    page = browser_page
    assert opened(page, tmp_path / "report.html", inspect_page(records, stored)) == []
    moved = page.locator("#compared tr", has_text="moved by leaving").locator("td").all_inner_texts()
    assert moved[1] == "0"
    assert float(moved[0]) > 0
    page.select_option("#model", "1")
    assert page.inner_text("#title") == "Attention in tiny multiscreen"
    assert page.locator("#overview button").count() == 6


@pytest.mark.slow
def test_a_long_text_opens_fast_and_is_small(browser_page: Page, tmp_path: Path) -> None:
    """270 heads over 2,048 tokens: as many numbers as SmolLM2-135M gives, made up."""
    from dataclasses import replace

    subject = transformer()
    record = inspect(subject, [LINE])
    heads = tuple(replace(record.heads[i % 8], layer=i // 9, head=i % 9) for i in range(270))
    table = record.tests["absolute_percentile"]
    tests = {
        **record.tests,
        "absolute_percentile": {**table, "scores": {str(i): table["scores"]["0"] * 3 for i in range(30)}},
    }
    kept = Pairs(["token "] * 2048, 270)
    rows, keys = len(kept.queries), kept.keys
    one = {
        "removal": "share",
        "keys": base64.b64encode(np.tile(np.arange(keys, dtype="<i4"), rows).tobytes()).decode(),
        "scores": base64.b64encode(np.random.default_rng(0).normal(size=rows * keys).astype("<f4").tobytes()).decode(),
        "weights": base64.b64encode(np.full(rows * keys, 1 / keys, "<f4").tobytes()).decode(),
        "seen": [2048] * rows,
    }
    stored = {
        "tokens": kept.pieces,
        "queries": kept.queries,
        "keys": keys,
        "heads": [{"layer": i // 9, "head": i % 9, **one} for i in range(270)],
    }
    html = inspect_page([replace(record, heads=heads, tests=tests)], [stored])
    assert len(html) < 20e6
    began = time.monotonic()
    assert opened(browser_page, tmp_path / "report.html", html) == []
    browser_page.wait_for_selector("#overview button")
    assert time.monotonic() - began < 3
    assert browser_page.locator("#overview button").count() == 270


def test_the_report_of_a_gpt2_on_2048_tokens(browser_page: Page, tmp_path: Path) -> None:
    """From the command to the page, with random weights: seventy-two heads, every number its own."""
    path = saved(tmp_path / "gpt2", "gpt2", n_layer=6, n_head=12, n_embd=96, n_positions=2048)
    report = tmp_path / "report.html"
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(path), "--text", " ".join(WORDS[1:]) * 200, "--tokens", "2048", "-o", str(report)])
    assert not ended.value.code
    assert report.stat().st_size < 20e6
    page = browser_page
    began = time.monotonic()
    assert opened(page, tmp_path / "again.html", report.read_text(encoding="utf-8")) == []
    page.wait_for_selector("#overview button")
    assert time.monotonic() - began < 3
    assert page.locator("#overview button").count() == 72
    assert "2,048 tokens" in page.inner_text("#about")
    stored = page.locator(".token.stored")
    assert stored.count() > 100
    stored.first.hover()
    assert page.locator("#keys tbody tr").count() > 0


@pytest.mark.slow
def test_accessible_and_fits_a_phone(
    browser_page: Page, softmax: tuple[Record, dict[str, Any]], tmp_path: Path
) -> None:
    page = browser_page
    source = axe()
    opened(page, tmp_path / "report.html", inspect_page([softmax[0]], [softmax[1]]))
    page.evaluate(source)
    found = page.evaluate("axe.run(document, {runOnly: ['wcag2a', 'wcag2aa']}).then(r => r.violations.map(v => v.id))")
    assert found == []
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto((tmp_path / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
