"""Scores view of the playground in a browser: dragging, typing, keyboard, presets and links."""

import math
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from keysift.core.number import number
from keysift.kernels.weigh import weigh
from keysift.verify.playground_reference import playground
from tests.web.play.session import Session, browser, file, session

pytestmark = pytest.mark.slow  # a browser each

__all__ = ["browser", "file", "session"]  # fixtures


def test_opens_and_agrees_with_python(session: Session) -> None:
    check = session.page.evaluate("checkAll(RECORD)")
    assert check["wrong"] == []
    assert check["most"] <= 1e-6
    session.until("document.getElementById('checked').textContent.startsWith('Checked on opening')")
    assert session.weight("softmax") == [number(w) for w in weigh("softmax", [1.8, 1.4, 0.6]).tolist()]
    assert session.weight("screening") == [number(w) for w in (0.64, 0.16, 0.0)]
    assert session.marks("softmax") == ["▼−0.0915", "▼−0.0613"], "the preset adds the third key"
    assert session.marks("screening") == []


def test_dragging_a_key_changes_other_weights_of_softmax_only(session: Session) -> None:
    before = session.weight("softmax")
    session.drag("#keys-front .handle:nth-child(1) .knob", 0, 40)
    after = session.weight("softmax")
    assert all(new != old for new, old in zip(after, before, strict=True))
    assert len(session.marks("softmax")) == 2, "B and C change although only A was dragged"
    assert session.marks("screening") == []
    assert "B, C" in session.page.locator("[data-mechanism=softmax] .verdict").inner_text()
    cosine = float(session.page.input_value("#cosine"))
    assert 0.3 < cosine < 0.8
    expected = weigh("softmax", [2 * cosine, 1.4, 0.6]).tolist()
    assert after == [number(w) for w in expected]
    session.page.keyboard.press("Control+z")
    session.settle()
    assert session.weight("softmax") == before, "a whole drag is one undo step"
    session.page.keyboard.press("Control+Shift+z")
    session.settle()
    assert session.weight("softmax") == after


@pytest.mark.slow
def test_keys_are_added_typed_masked_duplicated_and_removed(session: Session) -> None:
    page = session.page
    page.click("#add")
    session.settle()
    assert len(session.weight("softmax")) == 4
    assert len(session.marks("softmax")) == 3
    page.fill("#cosine", "0.95")
    page.press("#cosine", "Enter")
    session.settle()
    assert session.weight("screening")[3] == number(0.9**2)
    page.fill("#cosine", "7")
    page.press("#cosine", "Enter")
    assert "number from -1 to 1" in page.inner_text("#typed-note")
    assert session.weight("screening")[3] == number(0.9**2), "an invalid cosine changes nothing"
    page.click("#mask")
    session.settle()
    assert session.weight("softmax")[3] == "masked"
    page.click("#duplicate")
    session.settle()
    assert len(session.weight("softmax")) == 5
    page.click("#remove")
    page.click("#remove")
    session.settle()
    assert len(session.weight("softmax")) == 4 - 1
    for _ in range(3):
        page.click("#remove")
    session.settle()
    assert session.weight("softmax") == []
    assert page.locator("#editor").get_attribute("disabled") is not None
    for _ in range(45):
        page.click("#add")
    session.settle()
    assert page.locator("#keys-front .handle").count() == 40
    assert "up to 40 keys" in page.inner_text("#spoken")


def test_the_keyboard_edits_keys_and_switches_views(session: Session) -> None:
    page = session.page
    page.focus("#keys-front .handle:nth-child(2)")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Shift+ArrowUp")
    session.settle()
    handle = page.locator("#keys-front .handle:nth-child(2)")
    assert handle.get_attribute("aria-valuenow") == "0.81"
    assert handle.get_attribute("aria-valuetext") == "cosine 0.810, logit 1.62"
    page.keyboard.press("m")
    session.settle()
    assert session.weight("screening")[1] == "masked"
    page.keyboard.press("d")
    session.settle()
    assert len(session.weight("screening")) == 4
    page.keyboard.press("Delete")
    session.settle()
    session.settle()
    assert len(session.weight("screening")) == 3
    assert page.evaluate("document.activeElement.getAttribute('role')") == "slider", "the focus moves to the next key"
    page.focus("#tab-scores")
    page.keyboard.press("ArrowRight")
    session.settle()
    assert page.locator("#view-geometry").is_visible()
    page.focus("#circle .handle >> nth=0")
    page.keyboard.press("ArrowUp")
    session.settle()
    assert page.locator("#circle .handle").first.get_attribute("aria-valuetext") == "61 degrees"


def test_presets_show_the_numbers_of_python(session: Session) -> None:
    record = playground()
    page = session.page
    page.click("#chooser summary")
    for name in ("entmax15", "sigmoid", "differential_v2"):
        page.check(f"#chooser input[value={name}]")
    shown = ("softmax", "screening", "entmax15", "sigmoid", "differential_v2")
    for preset in record.presets:
        page.click(f"[data-preset={preset.name}]")
        session.settle()
        for golden in record.preset_cases:
            if golden.preset != preset.name or golden.mechanism not in shown:
                continue
            assert session.weight(golden.mechanism) == [number(w) for w in golden.weights], golden
            assert session.fact(golden.mechanism, "total mass") == number(golden.mass), golden
            keys = len(preset.cosines) + preset.crowd
            assert session.fact(golden.mechanism, "accepted") == f"{golden.accepted:,} of {keys:,}", golden
            if golden.accepted:
                text = f"{number(golden.entropy)} ({number(math.exp(golden.entropy))} keys)"
                assert session.fact(golden.mechanism, "entropy") == text, golden


def test_a_low_temperature_saturates_softmax_and_does_not_change_screening(session: Session) -> None:
    before = session.fact("screening", "own gradient"), session.weight("screening")
    gradient = float(session.fact("softmax", "own gradient"))
    session.page.evaluate("updateState((state) => ({ ...state, temperature: 0.1 }))")
    session.settle()
    assert float(session.fact("softmax", "own gradient")) < gradient / 10
    assert (session.fact("screening", "own gradient"), session.weight("screening")) == before
    assert session.fact("screening", "others' gradient") == "0", "the weight of a key does not depend on other keys"
    assert session.marks("softmax") == [], "every logit changed, so no change is marked"


def test_dilution_is_marked_and_drawn(session: Session) -> None:
    page = session.page
    page.click("[data-preset=two]")
    page.focus("#crowd")
    page.keyboard.press("End")
    session.settle()
    assert page.inner_text("#crowd-out") == "10,000"
    assert len(session.marks("softmax")) == 2
    assert session.marks("screening") == []
    session.until("document.querySelector('#dilution circle.dot') !== null")
    label = page.get_attribute("#dilution", "aria-label") or ""
    assert re.search(r"Screening: 0\.640, 0\.640, 0\.640", label), label


@pytest.mark.slow
def test_every_mechanism_is_drawn_at_extreme_settings(session: Session) -> None:
    page = session.page
    page.evaluate("updateState((state) => ({ ...state, shown: playable().map(({ name }) => name) }))")
    extremes = [
        "{ width: 1024, scaled: false, temperature: 0.1 }",
        "{ width: 1, temperature: 10, crowd: 10000, level: 0.8 }",
        "{ keys: [], crowd: 3 }",
        "{ keys: [], crowd: 0, selected: '' }",
        "{ keys: state.keys.map((key) => ({ ...key, masked: true })), crowd: 0 }",
        "{ keys: Array.from({ length: 40 }, (_, j) => newKey(keyName(j), Math.cos(j))) }",
        "{ shown: [] }",
    ]
    for extreme in extremes:
        page.click("[data-preset=third]")
        page.evaluate(f"updateState((state) => ({{ ...state, ...{extreme} }}))")
        session.settle()
        page.wait_for_timeout(200)
        html = page.inner_html("#view-scores")
        assert not re.search(r"\b(NaN|nan|undefined)\b", html), extreme
    assert page.locator("#panels article").count() == 0


def test_screen_readers_hear_which_weights_changed(session: Session) -> None:
    session.page.click("#add")
    session.until("document.getElementById('spoken').textContent.includes('A, B, C')")
    text = session.page.text_content("#spoken") or ""
    assert "Softmax: 3 weights changed although their own score did not: A, B, C." in text
    assert "Screening: No weight changed unless its own score did." in text


def test_a_link_restores_the_state(session: Session, browser: Browser, file: Path) -> None:
    page = session.page
    session.drag("#keys-front .handle:nth-child(3) .knob", 0, -30)
    page.focus("[data-mechanism=screening] input[type=range]")
    page.keyboard.press("ArrowRight")
    session.until("location.hash.includes('screening.acceptance')")
    expected = session.weight("softmax"), session.weight("screening"), session.marks("softmax")
    recipient = browser.new_page()
    recipient.goto(page.url)
    recipient.wait_for_selector("[data-mechanism=softmax] svg rect.bar")
    selector = "[data-mechanism={}] svg text.{}"
    assert recipient.locator(selector.format("softmax", "weight")).all_text_contents() == expected[0]
    assert recipient.locator(selector.format("screening", "weight")).all_text_contents() == expected[1]
    assert recipient.locator(selector.format("softmax", "mark")).all_text_contents() == expected[2]
    recipient.goto(file.as_uri() + "#k=%F0%9F%92%A9&show=<script>&n=1e309")
    recipient.reload()
    assert recipient.locator("[data-mechanism=softmax]").count() == 1
    recipient.close()
