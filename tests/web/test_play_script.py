"""The playground's own JavaScript without a browser: node runs the sources the page is made of."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from keysift.evaluate.play import PRESETS, distractors, playground
from keysift.evaluate.play_record import Playground
from keysift.mechanisms import MECHANISMS
from keysift.web.number import number
from keysift.web.play_page import MATHEMATICS, PAGE, VIEWS, as_json, play_page, script, shipped_model

NODE = shutil.which("node")


@pytest.fixture(scope="module")
def record() -> Playground:
    return playground()


def node(program: str, *names: str, record: Playground | None = None) -> Any:
    """What `program` leaves in `found`, after the page's sources have run."""
    if NODE is None:
        if os.environ.get("CI"):
            pytest.fail("no node found: CI must install nodejs (see .ci/run)")
        pytest.skip("NO NODE FOUND: the page's JavaScript was not tested outside a browser; install nodejs")
    start = f"RECORD = {as_json(record, {})};\n" if record else ""
    text = f"{script(*names)}\n{start}let found;\n{program}\nconsole.log(JSON.stringify(found));"
    done = subprocess.run([NODE, "-"], input=text, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_number_is_pythons(record: Playground) -> None:
    found = node("found = checkAll(RECORD);", *MATHEMATICS, record=record)
    assert found["wrong"] == []
    assert found["missing"] == []
    assert 0 < found["most"] <= 1e-6
    assert found["count"] == len(record.cases) + len(record.preset_cases) + 3 * len(record.scenes)
    assert {case.mechanism for case in record.cases} == {mechanism.name for mechanism in MECHANISMS}


FAULTS = [
    ("1 - (1 - cosine) / acceptance", "1 - (1 - cosine) * acceptance"),
    ("distance >= 0 && distance < window", "distance >= 0"),
    ("Math.exp(v - top) : 0", "Math.exp(v - top) : 1e-3"),
    ("tau = (sum - 1) / k", "tau = sum / k"),
    ("a - row.lam * b[j]", "a + row.lam * b[j]"),
    ("Math.sqrt(width) : width) / temperature", "width : width) / temperature"),
    ("distance * mipeAngle(window)", "distance"),
    ("Math.tanh(length) / length : 1", "1 : 1"),
]


def test_the_check_sees_every_seeded_fault(record: Playground) -> None:
    sources = script(*MATHEMATICS)
    assert all(sources.count(right) == 1 for right, _ in FAULTS)
    edited = json.dumps([sources.replace(right, wrong) for right, wrong in FAULTS])
    program = f"""const record = {as_json(record, {})};
const run = (text) => new Function(`${{text}}; RECORD = arguments[0]; return checkAll(RECORD).wrong.length`)(record);
found = {edited}.map(run);"""
    assert all(wrong > 0 for wrong in node(program)), dict(zip(FAULTS, node(program), strict=True))


def test_what_the_page_cannot_show_is_named(record: Playground) -> None:
    foreign = replace(record.mechanisms[0], name="foreign")
    longer = replace(record, mechanisms=(*record.mechanisms, foreign))
    program = "found = [checkAll(RECORD).missing, playable().map(({ name }) => name)];"
    missing, shown = node(program, *MATHEMATICS, record=longer)
    assert missing == ["foreign"]
    assert shown == [mechanism.name for mechanism in record.mechanisms]


def test_distractors_are_pythons() -> None:
    found = node("found = Array.from({ length: 50 }, (_, j) => distractor(j, 0.1));", *MATHEMATICS)
    assert found == distractors(50, 0.1)


def test_numbers_are_written_as_python_writes_them() -> None:
    values = [
        0.0,
        1e-9,
        0.5,
        -0.25,
        1.0,
        22025.4,
        25.0,
        0.9996,
        -1e-5,
        9.9996,
        99.96,
        -12.34,
        123456.0,
        987654321.0,
        -3.2e12,
    ]
    assert node(f"found = {values}.map(number);", *MATHEMATICS) == [number(value) for value in values]


def test_a_state_survives_its_address(record: Playground) -> None:
    program = """
const state = fromPreset(RECORD.presets[1]);
state.keys[1] = { ...state.keys[1], masked: true, second: -0.25 };
Object.assign(state, { crowd: 17, level: 0.15, temperature: 0.5, width: 64, scaled: false, pinned: true,
  shown: ["entmax15", "softmax+value_gate"], dials: { "screening.acceptance": 0.35 }, selected: "B",
  view: "geometry" });
state.plane.keys[0].angle = -33;
const again = fromAddress(toAddress(state));
found = [JSON.stringify(state) === JSON.stringify(again), JSON.stringify(again)];
"""
    same, text = node(program, *MATHEMATICS, "address", record=record)
    assert same, text


ADDRESSES = [
    "#k=",
    "#k=A~9 B~nan C~0.5 C~0.6 <b>~1",
    "#k=A~0.5&show=toString constructor&dials=screening.acceptance~7 x.y~1 softmax~~&n=-5&d=1e99&t=zero",
    "#k=A~0.5&plane=1_2 3&view=%3Cscript%3E&b.k=%00&sel=__proto__",
    "#k=" + "A~1 " * 5000,
]


def test_a_hostile_address_is_read_or_left_out(record: Playground) -> None:
    program = f"""found = {json.dumps(ADDRESSES)}.map((address) => {{
  const state = fromAddress(address);
  return {{ state, sums: state.shown.map((name) => summary(weightsOf(name, cosinesOf(state), state)).mass) }};
}});"""
    for found in node(program, *MATHEMATICS, "address", record=record):
        state: Mapping[str, Any] = found["state"]
        assert all(-1 <= key["cosine"] <= 1 for key in state["keys"])
        assert len({key["name"] for key in state["keys"]}) == len(state["keys"]) <= 40
        assert state["view"] == "scores"
        assert state["shown"] == ["softmax", "screening"]
        assert 0 <= state["crowd"] <= 10_000
        assert 1 <= state["width"] <= 1024
        assert state["plane"]["keys"]
        assert all(isinstance(value, int | float) for value in found["sums"])


def head(**more: Any) -> dict[str, Any]:
    return {"weights": [[1.0, 0.0], [0.5, 0.5]], "scores": None, "threshold": None} | more


def maps(**more: Any) -> dict[str, Any]:
    return {"format": "keysift-maps", "version": 1, "tokens": ["a", "<b>"], "layers": [{"heads": [head()]}]} | more


RECORDS: list[tuple[object, str | int]] = [
    (maps(), 1),
    (maps(layers=[{"heads": [head(scores=[[1, 2], [3, -4]], threshold=0.5), head()]}] * 3), 3),
    (maps(format="other"), 'Expected "format": "keysift-maps", got "other"'),
    (maps(version=2), "This page reads version 1, the record has 2"),
    ([], "Expected a JSON object"),
    (None, "Expected a JSON object"),
    (maps(tokens=[]), "tokens must be a list"),
    (maps(tokens=["a", 3]), "tokens[1] must be text"),
    (maps(tokens=["a", "b" * 201]), "tokens[1] must be text of at most 200 characters"),
    (maps(tokens=["a"] * 1025), "the page shows up to 1,024"),
    (maps(layers={}), "layers must be a list"),
    (maps(layers=[None]), "layers[0].heads must be a list"),
    (maps(layers=[{"heads": [None]}]), "layers[0].heads[0] must be an object"),
    (maps(layers=[{"heads": [head(weights=[[1]])]}]), "one row for each of the 2 tokens"),
    (maps(layers=[{"heads": [head(weights=[[1, 0], [0.5]])]}]), "weights[1] must have 2 numbers"),
    (
        maps(layers=[{"heads": [head(weights=[[1, 0], [0.5, "x"]])]}]),
        'weights[1][1] must be a finite number, got "x"',
    ),
    (
        maps(layers=[{"heads": [head(scores=[[1, 0], [None, 1]])]}]),
        "scores[1][0] must be a finite number, got null",
    ),
    (maps(layers=[{"heads": [head(threshold="0")]}]), "threshold must be a number or null"),
    (maps(layers=[{"heads": [head(name=3)]}]), "name must be text"),
    (shipped_model()["maps"], 3),
    (maps(tokens=["a"] * 1024, layers=[{"heads": [{"weights": []}] * 9}]), "one row for each of the 1024 tokens"),
]
READ = """
const read = (text) => {
  try { return readMaps(text).layers.length; } catch (error) {
    if (error instanceof Refused) return error.message;
    throw error;
  }
};
"""


def test_maps_are_read_or_refused_in_words() -> None:
    texts = json.dumps([json.dumps(given) for given, _ in RECORDS])
    answers = node(f"{READ} found = {texts}.map(read);", *MATHEMATICS, "maps_record")
    for answer, (given, expected) in zip(answers, RECORDS, strict=True):
        assert expected in answer if isinstance(expected, str) else expected == answer, given


@pytest.mark.slow
def test_maps_that_are_too_large_or_no_json_are_refused() -> None:
    program = """
const square = Array(1000).fill(Array(1000).fill(0));
const many = { format: "keysift-maps", version: 1, tokens: Array(1000).fill("a"),
  layers: Array(9).fill({ heads: [{ weights: square }] }) };
found = ["{tokens: <img onerror=alert(1)>", "[".repeat(64e6 + 1), JSON.stringify(many)].map(read);
"""
    garbage, huge, many = node(READ + program, *MATHEMATICS, "maps_record")
    assert "This is not JSON" in garbage
    assert "larger than 64 MB" in huge
    assert "more than 8,000,000 numbers" in many


def test_the_page_is_one_small_file(record: Playground) -> None:
    page = play_page(record, shipped_model())
    assert len(page.encode()) < 400_000
    assert "/*script*/" not in page
    assert "http-equiv" in page
    for preset in PRESETS:
        assert preset.title in page


def test_no_text_of_the_record_can_end_its_element(record: Playground) -> None:
    hostile = replace(
        record, mechanisms=(replace(record.mechanisms[0], title="</script><img src=x onerror=alert(1)>"),)
    )
    assert "</script><img" not in play_page(hostile, shipped_model())


@pytest.mark.parametrize(
    "word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "XMLHttpRequest"]
)
def test_the_sources_make_no_markup_and_ask_no_network(word: str) -> None:
    assert word not in script(*MATHEMATICS, *PAGE, *VIEWS)
