"""The playground as a person uses it: a real browser opens the file from disk; keys are dragged, typed and shared."""

import math
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from keysift.evaluate.play import playground
from keysift.kernels.weigh import weigh
from keysift.web.number import number
from tests.web.playing import Session, browser, file, session

pytestmark = pytest.mark.slow  # a browser each

__all__ = ["browser", "file", "session"]  # fixtures


def test_opens_and_agrees_with_python(session: Session) -> None:
    found = session.page.evaluate("checkAll(RECORD)")
    assert found["wrong"] == []
    assert found["most"] <= 1e-6
    session.until("document.getElementById('checked').textContent.startsWith('Checked when it opened')")
    assert session.weight("softmax") == [number(w) for w in weigh("softmax", [1.8, 1.4, 0.6]).tolist()]
    assert session.weight("screening") == [number(w) for w in (0.64, 0.16, 0.0)]
    assert session.marks("softmax") == ["▼−0.0915", "▼−0.0613"], "the third key has just arrived"
    assert session.marks("screening") == []


def test_a_dragged_key_moves_the_others_of_softmax_only(session: Session) -> None:
    before = session.weight("softmax")
    session.drag("#keys-front .handle:nth-child(1) .knob", 0, 40)
    after = session.weight("softmax")
    assert all(new != old for new, old in zip(after, before, strict=True))
    assert len(session.marks("softmax")) == 2, "B and C moved although only A was dragged"
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
    assert session.weight("screening")[3] == number(0.9**2), "what is no cosine changes nothing"
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


def test_the_keyboard_does_what_the_mouse_does(session: Session) -> None:
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
    assert page.evaluate("document.activeElement.getAttribute('role')") == "slider", "the focus goes to a neighbour"
    page.focus("#tab-scores")
    page.keyboard.press("ArrowRight")
    session.settle()
    assert page.locator("#view-geometry").is_visible()
    page.focus("#circle .handle >> nth=0")
    page.keyboard.press("ArrowUp")
    session.settle()
    assert page.locator("#circle .handle").first.get_attribute("aria-valuetext") == "61 degrees"


def test_preset_numbers_are_pythons(session: Session) -> None:
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


def test_a_low_temperature_saturates_softmax_and_leaves_screening(session: Session) -> None:
    before = session.fact("screening", "own gradient"), session.weight("screening")
    gradient = float(session.fact("softmax", "own gradient"))
    session.page.evaluate("change((state) => ({ ...state, temperature: 0.1 }))")
    session.settle()
    assert float(session.fact("softmax", "own gradient")) < gradient / 10
    assert (session.fact("screening", "own gradient"), session.weight("screening")) == before
    assert session.fact("screening", "others' gradient") == "0", "a judgement of one key has no other key in it"
    assert session.marks("softmax") == [], "every logit changed, so nothing moved without a reason"


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
def test_every_mechanism_draws_at_every_extreme(session: Session) -> None:
    page = session.page
    page.evaluate("change((state) => ({ ...state, shown: playable().map(({ name }) => name) }))")
    extremes = [
        "{ width: 1024, scaled: false, temperature: 0.1 }",
        "{ width: 1, temperature: 10, crowd: 10000, level: 0.8 }",
        "{ keys: [], crowd: 3 }",
        "{ keys: [], crowd: 0, selected: '' }",
        "{ keys: state.keys.map((key) => ({ ...key, masked: true })), crowd: 0 }",
        "{ keys: Array.from({ length: 40 }, (_, j) => keyOf(letter(j), Math.cos(j))) }",
        "{ shown: [] }",
    ]
    for extreme in extremes:
        page.click("[data-preset=third]")
        page.evaluate(f"change((state) => ({{ ...state, ...{extreme} }}))")
        session.settle()
        page.wait_for_timeout(200)
        html = page.inner_html("#view-scores")
        assert not re.search(r"\b(NaN|nan|undefined)\b", html), extreme
    assert page.locator("#panels article").count() == 0


def test_what_moved_is_also_said(session: Session) -> None:
    session.page.click("#add")
    session.until("document.getElementById('spoken').textContent.includes('A, B, C')")
    said = session.page.text_content("#spoken") or ""
    assert "Softmax: 3 keys moved although their own score did not: A, B, C." in said
    assert "Screening: No key moved without a reason of its own." in said


def test_a_link_shows_what_its_sender_saw(session: Session, browser: Browser, file: Path) -> None:
    page = session.page
    session.drag("#keys-front .handle:nth-child(3) .knob", 0, -30)
    page.focus("[data-mechanism=screening] input[type=range]")
    page.keyboard.press("ArrowRight")
    session.until("location.hash.includes('screening.acceptance')")
    saw = session.weight("softmax"), session.weight("screening"), session.marks("softmax")
    other = browser.new_page()
    other.goto(page.url)
    other.wait_for_selector("[data-mechanism=softmax] svg rect.bar")
    find = "[data-mechanism={}] svg text.{}"
    assert other.locator(find.format("softmax", "weight")).all_text_contents() == saw[0]
    assert other.locator(find.format("screening", "weight")).all_text_contents() == saw[1]
    assert other.locator(find.format("softmax", "mark")).all_text_contents() == saw[2]
    other.goto(file.as_uri() + "#k=%F0%9F%92%A9&show=<script>&n=1e309")
    other.reload()
    assert other.locator("[data-mechanism=softmax]").count() == 1
    other.close()
