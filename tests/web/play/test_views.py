"""Other views of the playground in a browser; files, accessibility and speed."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from keysift.web.play.page import stored_measurement
from keysift.web.play.picture import colours
from tests.web.browser import axe
from tests.web.play.session import Session, browser, file, session
from tests.web.play.test_scripts import maps

pytestmark = pytest.mark.slow  # a browser each

__all__ = ["browser", "file", "session"]  # fixtures


def test_geometry_reports_a_zero_output_and_one_outside_the_hull(session: Session) -> None:
    page = session.page
    page.click("#tab-geometry")
    session.settle()
    assert "outside the hull" in page.inner_text("#plane-note")
    page.focus("#circle .handle >> nth=0")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowDown")
    page.focus("#g-accept")
    page.keyboard.press("Home")
    session.settle()
    assert "exactly zero" in page.inner_text("#plane-note")
    assert "screening (0, 0)" in (page.text_content("#values-front") or "")
    window = page.input_value("#g-window")
    session.drag("#window-chart .handle .grip", -60, 0)
    assert float(page.input_value("#g-window")) > float(window)
    r = page.input_value("#g-accept")
    session.drag("#circle .handle .grip", -60, -10)
    assert page.input_value("#g-accept") != r
    angle = page.locator("#circle .handle").nth(2).get_attribute("aria-valuenow")
    session.drag("#circle .handle .knob >> nth=2", 60, 60)
    assert page.locator("#circle .handle").nth(2).get_attribute("aria-valuenow") != angle
    page.click("#move-away")
    session.until("store.state.plane.keys[0].distance >= 3")
    page.click("#move-away")
    page.click("#undo")
    session.settle()
    assert page.evaluate("store.state.plane.keys[0].distance") == 0, "moving the keys is one undo step"


def drop(page: Page, text: str, name: str = "maps.json") -> None:
    page.evaluate(
        """([text, name]) => {
            const data = new DataTransfer();
            data.items.add(new File([text], name, { type: "application/json" }));
            for (const kind of ["dragover", "drop"]) {
                const event = new DragEvent(kind, { dataTransfer: data, bubbles: true, cancelable: true });
                document.getElementById("drop").dispatchEvent(event);
            }
        }""",
        [text, name],
    )


def test_maps_open_on_a_labelled_screening_head(session: Session) -> None:
    page = session.page
    page.click("#tab-map")
    session.settle()
    assert page.inner_text("#map-title") == "Layer 0, head 0, screening: threshold 0.500"
    assert page.inner_text("#map-query-out") == "14: “·needle”"
    for labels, count in (("#heat-queries span", 15), ("#heat-keys span", 15)):
        assert page.locator(labels).count() == count
        assert page.locator(labels).last.inner_text() == "·needle"
    judged = {row.split("\t")[1].strip(): row.split("\t")[-1] for row in page.locator("#map-rows tr").all_inner_texts()}
    assert judged["Once"] == "above"
    assert judged["·in"] == "below"
    pixels = page.evaluate(
        "[...heatCanvas().getContext('2d').getImageData(0, 14, 15, 1).data].filter((_, i) => i % 4 < 3)"
    )
    assert len(set(pixels)) > 3, "the last row has no visible weight"


def test_layers_and_heads_have_the_numbers_of_their_address(session: Session) -> None:
    page = session.page
    page.click("#tab-map")
    head = {"weights": [[1, 0], [0.25, 0.5]]}
    layers = [{"heads": [head | {"name": name}]} for name in ("layers.1.heads.5", "layers.4.heads.2")]
    drop(page, json.dumps(maps(layers=layers)))
    session.until("document.getElementById('map-layer-out').textContent === '1'")
    assert page.inner_text("#map-head-out") == "5: layers.1.heads.5"
    assert page.inner_text("#map-title") == "Layer 1, head 5: no threshold"
    page.focus("#map-layer")
    page.keyboard.press("ArrowRight")
    session.settle()
    assert page.inner_text("#map-layer-out") == "4"
    drop(page, json.dumps(maps(layers=[{"heads": [head]}, {"heads": [head]}])))
    session.until("document.getElementById('map-layer-out').textContent === '0'")


def test_maps_are_dropped_picked_and_browsed(session: Session, tmp_path: Path) -> None:
    page = session.page
    page.click("#tab-map")
    head = {"weights": [[1, 0], [0.25, 0.5]], "scores": [[0.9, 0], [0.75, 0.85]], "threshold": 0.8}
    record = maps(
        tokens=["Hi\n", "\u202ethere"], layers=[{"heads": [head, head | {"threshold": None, "scores": None}]}]
    )
    drop(page, json.dumps(record))
    page.wait_for_selector("#map-rows tr")
    rows = [row.split("\t") for row in page.locator("#map-rows tr").all_inner_texts()]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["0", "Hi⏎", "0.250", "", "0.750", "below"],
        ["1", "�there", "0.500", "", "0.850", "above"],
    ]
    page.focus("#map-head")
    page.keyboard.press("ArrowRight")
    session.settle()
    assert page.locator("#map-rows tr").first.inner_text().split("\t")[-2:] == ["–", "–"]
    page.focus("#map-query")
    page.keyboard.press("Home")
    session.settle()
    assert page.locator("#map-rows tr").count() == 1, "the first causal query has one visible key"
    path = tmp_path / "picked.json"
    path.write_text(json.dumps(maps()))
    page.set_input_files("#pick", path)
    session.until("document.getElementById('map-message').textContent.startsWith('2 tokens, 1 layer.')")
    page.click("#example")
    session.settle()
    assert page.locator("#map-rows tr").count() == 15


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "This is not JSON"),
        ("[1, 2", "This is not JSON"),
        (
            '{"format": "keysift-maps", "version": 1, "tokens": ["a"], "layers": [{"heads": [{"weights": [[null]]}]}]}',
            "must be a finite number",
        ),
        ('{"format": "<img src=x onerror=document.title=1>"}', "Expected"),
        ('{"__proto__": {"format": "keysift-maps"}, "constructor": 1}', "Expected"),
        ("[" * 100_000, "This is not JSON"),
    ],
    ids=["empty", "malformed", "null", "markup", "prototype", "deep"],
)
def test_invalid_json_shows_a_message(session: Session, text: str, message: str) -> None:
    page = session.page
    page.click("#tab-map")
    page.click("#example")
    drop(page, text)
    session.until("document.getElementById('map-message').className === 'error'")
    assert message in page.inner_text("#map-message")
    assert page.locator("#map-rows tr").count() == 15, "the maps shown before stay"
    page.click("#view-map summary")
    page.fill("#paste", text)
    page.click("#paste-read")
    assert message in page.inner_text("#map-message")
    assert page.locator("img").count() == 0


def test_the_real_model_is_shown_with_its_maps(session: Session) -> None:
    page = session.page
    page.click("#tab-real")
    session.settle()
    assert page.locator("#real-chart polyline").count() == 4
    real = stored_measurement()
    assert f"{round(100 * max(real['strongest']))}% of its mass on the first token" in page.inner_text("#real-facts")
    page.click("#real-maps")
    session.settle()
    assert page.locator("#map-rows tr").count() == len(real["maps"]["tokens"])
    assert real["maps"]["layers"][0]["heads"][0]["name"] in page.inner_text("#map-head-out")


def test_a_huge_file_is_rejected_before_it_is_read(session: Session) -> None:
    page = session.page
    page.click("#tab-map")
    page.evaluate("loadFile({ name: 'huge.json', size: 3e9, text: () => { throw new Error('read'); } })")
    assert "huge.json has 3,000 MB; the page reads up to 64 MB." in page.inner_text("#map-message")


def test_markup_in_tokens_stays_text(session: Session) -> None:
    page = session.page
    page.click("#tab-map")
    drop(
        page,
        json.dumps(
            maps(tokens=["<img src=x onerror=\"document.title='owned'\">", "</script><script>alert(1)</script>"])
        ),
    )
    page.wait_for_selector("#map-rows tr")
    assert page.locator("#map-rows bdi").first.inner_text().startswith("<img·src=x")
    assert page.locator("img").count() == 0
    assert "owned" not in page.title()


def test_figures_are_saved_as_svg_and_png(session: Session, tmp_path: Path) -> None:
    page = session.page
    with page.expect_download() as svg:
        page.click("#svg")
    svg.value.save_as(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert "Softmax" in text
    assert "▼−0.0915" in text
    assert "var(" not in text, "the file must not depend on a style sheet"
    red = ", ".join(str(int(colours("light")["moved"][at : at + 2], 16)) for at in (1, 3, 5))
    assert len(re.findall(rf'<rect[^>]*fill="rgb\({red}\)"', text)) == 2, "the two changed bars"
    assert re.search(r'<text[^>]*paint-order="stroke"[^>]*>screening accepts', text), (
        "the outline of a text must stay behind its letters"
    )
    with page.expect_download() as png:
        page.click("#png")
    png.value.save_as(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    page.click("#tab-map")
    session.settle()
    with page.expect_download() as heat:
        page.click("#svg")
    heat.value.save_as(tmp_path / "heat.svg")
    assert "data:image/png;base64" in (tmp_path / "heat.svg").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_views_are_accessible_and_fit_the_screen(browser: Browser, file: Path, width: int, scheme: Any) -> None:
    source = axe()
    view_session = Session(browser, file, viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = view_session.page
    page.add_script_tag(content=source)
    for view in ("scores", "geometry", "map", "real"):
        page.click(f"#tab-{view}")
        if view == "map":
            page.click("#example")
        if view == "scores":
            page.click("#chooser summary")
        view_session.settle()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        violations = page.evaluate("async () => (await axe.run()).violations")
        serious = [
            (rule["id"], [node["html"][:120] for node in rule["nodes"]])
            for rule in violations
            if rule["impact"] in ("serious", "critical")
        ]
        assert serious == [], view
    assert view_session.errors == []
    page.context.close()


# Pointer events are created inside the page, one per frame, so that round trips of the protocol are not measured.
DRAG = """async () => {
    const handle = document.querySelector("#keys-front .handle"), chart = document.getElementById("keys-chart");
    const box = chart.getBoundingClientRect();
    const at = (share) => ({ pointerId: 1, bubbles: true, clientX: 0, clientY: box.top + share * box.height });
    handle.setPointerCapture = () => {};
    handle.dispatchEvent(new PointerEvent("pointerdown", at(0.2)));
    const frames = [], seen = new Set();
    let drawn = 0;
    const inner = store.draw;
    store.draw = (state) => { inner(state); drawn++; };
    await new Promise((done) => {
        const begin = performance.now();
        const step = (now) => {
            frames.push(now);
            seen.add(store.state.keys[0].cosine);
            handle.dispatchEvent(new PointerEvent("pointermove", at(0.35 + 0.2 * Math.sin(frames.length / 5))));
            if (performance.now() - begin < 2000) requestAnimationFrame(step);
            else done();
        };
        requestAnimationFrame(step);
    });
    handle.dispatchEvent(new PointerEvent("pointerup", at(0.3)));
    const rate = (1000 * (frames.length - 1)) / (frames.at(-1) - frames[0]);
    return { rate, drawn: drawn / frames.length, positions: seen.size };
}"""


@pytest.mark.slow
def test_dragging_with_ten_thousand_keys_keeps_thirty_frames_per_second(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    page = session.page
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.click("[data-preset=needle10000]")
    page.wait_for_timeout(500)
    best = max((page.evaluate(DRAG) for _ in range(3)), key=lambda run: run["rate"])
    assert best["drawn"] > 0.9, "every frame draws the new weights"
    assert best["positions"] > 10, "the key follows the pointer"
    with capsys.disabled():
        sys.stdout.write(
            f"\nplayground: first paint {painted:.0f} ms; 10,000 keys at {best['rate']:.0f} frames per second\n"
        )
    assert best["rate"] > 30
    assert painted < 1000
