"""Scripts of the playground, run by node without a browser."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from keysift.core.number import number
from keysift.mechanisms import MECHANISMS
from keysift.records.playground import Playground
from keysift.verify.playground_reference import PRESETS, distractors, playground
from keysift.web.play.page import CONTROLS, MATHEMATICS, VIEWS, page_data, play_page, stored_measurement
from keysift.web.shared.page import embedded_json, joined_scripts
from tests.web.browser import node


@pytest.fixture(scope="module")
def record() -> Playground:
    return playground()


def run_script(program: str, *names: str, record: Playground | None = None) -> Any:
    """Run the named scripts and then `program` in node; returns the value it leaves in `result`."""
    start = f"RECORD = {embedded_json(page_data(record, {}))};\n" if record else ""
    text = f"{joined_scripts(names)}\n{start}let result;\n{program}\nconsole.log(JSON.stringify(result));"
    process = subprocess.run([node(), "-"], input=text, check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_the_page_computes_what_python_computes(record: Playground) -> None:
    result = run_script("result = checkAll(RECORD);", *MATHEMATICS, record=record)
    assert result["wrong"] == []
    assert result["missing"] == []
    assert 0 < result["most"] <= 1e-6
    assert result["count"] == len(record.cases) + len(record.preset_cases) + 3 * len(record.scenes)
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


def test_the_self_check_reports_every_seeded_fault(record: Playground) -> None:
    sources = joined_scripts(MATHEMATICS)
    assert all(sources.count(right) == 1 for right, _ in FAULTS)
    edited = json.dumps([sources.replace(right, wrong) for right, wrong in FAULTS])
    program = f"""const record = {embedded_json(page_data(record, {}))};
const run = (text) => new Function(`${{text}}; RECORD = arguments[0]; return checkAll(RECORD).wrong.length`)(record);
result = {edited}.map(run);"""
    assert all(wrong > 0 for wrong in run_script(program)), dict(zip(FAULTS, run_script(program), strict=True))


def test_mechanisms_the_page_cannot_compute_are_listed(record: Playground) -> None:
    foreign = replace(record.mechanisms[0], name="foreign")
    longer = replace(record, mechanisms=(*record.mechanisms, foreign))
    program = "result = [checkAll(RECORD).missing, playable().map(({ name }) => name)];"
    missing, shown = run_script(program, *MATHEMATICS, record=longer)
    assert missing == ["foreign"]
    assert shown == [mechanism.name for mechanism in record.mechanisms]


def test_distractors_match_python() -> None:
    result = run_script("result = Array.from({ length: 50 }, (_, j) => distractor(j, 0.1));", *MATHEMATICS)
    assert result == distractors(50, 0.1)


def test_numbers_are_formatted_as_in_python() -> None:
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
    assert run_script(f"result = {values}.map(formatNumber);", *MATHEMATICS) == [number(value) for value in values]


def test_a_state_survives_its_link(record: Playground) -> None:
    program = """
const state = fromPreset(RECORD.presets[1]);
state.keys[1] = { ...state.keys[1], masked: true, second: -0.25 };
Object.assign(state, { crowd: 17, level: 0.15, temperature: 0.5, width: 64, scaled: false, pinned: true,
  shown: ["entmax15", "softmax+value_gate"], dials: { "screening.acceptance": 0.35 }, selected: "B",
  view: "geometry" });
state.plane.keys[0].angle = -33;
const again = fromHash(toHash(state));
result = [JSON.stringify(state) === JSON.stringify(again), JSON.stringify(again)];
"""
    same, text = run_script(program, *MATHEMATICS, "play/address.js", record=record)
    assert same, text


ADDRESSES = [
    "#k=",
    "#k=A~9 B~nan C~0.5 C~0.6 <b>~1",
    "#k=A~0.5&show=toString constructor&dials=screening.acceptance~7 x.y~1 softmax~~&n=-5&d=1e99&t=zero",
    "#k=A~0.5&plane=1_2 3&view=%3Cscript%3E&b.k=%00&sel=__proto__",
    "#k=" + "A~1 " * 5000,
]


def test_invalid_parts_of_a_link_are_ignored(record: Playground) -> None:
    program = f"""result = {json.dumps(ADDRESSES)}.map((address) => {{
  const state = fromHash(address);
  return {{ state, sums: state.shown.map((name) => rowSummary(computeWeights(name, allCosines(state), state)).mass) }};
}});"""
    for result in run_script(program, *MATHEMATICS, "play/address.js", record=record):
        state: Mapping[str, Any] = result["state"]
        assert all(-1 <= key["cosine"] <= 1 for key in state["keys"])
        assert len({key["name"] for key in state["keys"]}) == len(state["keys"]) <= 40
        assert state["view"] == "scores"
        assert state["shown"] == ["softmax", "screening"]
        assert 0 <= state["crowd"] <= 10_000
        assert 1 <= state["width"] <= 1024
        assert state["plane"]["keys"]
        assert all(isinstance(value, int | float) for value in result["sums"])


def head(**changes: Any) -> dict[str, Any]:
    return {"weights": [[1.0, 0.0], [0.5, 0.5]], "scores": None, "threshold": None} | changes


def maps(**changes: Any) -> dict[str, Any]:
    return {"format": "keysift-maps", "version": 1, "tokens": ["a", "<b>"], "layers": [{"heads": [head()]}]} | changes


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
    (stored_measurement()["maps"], 3),
    (maps(tokens=["a"] * 1024, layers=[{"heads": [{"weights": []}] * 9}]), "one row for each of the 1024 tokens"),
]
READ = """
const read = (text) => {
  try { return readMaps(text).layers.length; } catch (error) {
    if (error instanceof InvalidMaps) return error.message;
    throw error;
  }
};
"""


def test_maps_are_read_or_rejected_with_a_message() -> None:
    texts = json.dumps([json.dumps(given) for given, _ in RECORDS])
    answers = run_script(f"{READ} result = {texts}.map(read);", *MATHEMATICS, "play/views/maps_reader.js")
    for answer, (given, expected) in zip(answers, RECORDS, strict=True):
        assert expected in answer if isinstance(expected, str) else expected == answer, given


@pytest.mark.slow
def test_oversized_maps_and_invalid_json_are_rejected() -> None:
    program = """
const square = Array(1000).fill(Array(1000).fill(0));
const many = { format: "keysift-maps", version: 1, tokens: Array(1000).fill("a"),
  layers: Array(9).fill({ heads: [{ weights: square }] }) };
result = ["{tokens: <img onerror=alert(1)>", "[".repeat(64e6 + 1), JSON.stringify(many)].map(read);
"""
    garbage, huge, many = run_script(READ + program, *MATHEMATICS, "play/views/maps_reader.js")
    assert "This is not JSON" in garbage
    assert "larger than 64 MB" in huge
    assert "more than 8,000,000 numbers" in many


def test_the_page_is_one_small_file(record: Playground) -> None:
    page = play_page(record, stored_measurement())
    assert len(page.encode()) < 400_000
    assert "/*script*/" not in page
    assert "http-equiv" in page
    for preset in PRESETS:
        assert preset.title in page


def test_text_of_the_record_cannot_close_its_element(record: Playground) -> None:
    hostile = replace(
        record, mechanisms=(replace(record.mechanisms[0], title="</script><img src=x onerror=alert(1)>"),)
    )
    assert "</script><img" not in play_page(hostile, stored_measurement())


@pytest.mark.parametrize(
    "word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "XMLHttpRequest"]
)
def test_scripts_build_no_markup_and_use_no_network(word: str) -> None:
    assert word not in joined_scripts((*MATHEMATICS, *CONTROLS, *VIEWS))


def test_a_refused_group_has_no_accepted_key() -> None:
    """The bound of docs/search.md in the plane, for queries and acceptances all round; it refuses and opens groups."""
    program = """result = { wrong: 0, refused: 0, accepted: 0, opened: 0 };
    for (let query = -180; query < 180; query += 1) for (const r of [0.01, 0.1, 0.5, 0.99]) {
      for (const group of searchGroups(query, r)) {
        const accepted = group.keys.filter((key) => key.accepted).length;
        result.wrong += !group.opened && accepted ? 1 : 0;
        result[group.opened ? "opened" : "refused"] += 1;
        result.accepted += accepted;
      }
    }"""
    found = run_script(program, "play/mathematics/groups.js")
    assert found["wrong"] == 0
    assert found["accepted"] > 4000
    assert found["refused"] > found["opened"] > 1000
    # Between -180 and 180 degrees the angle goes the short way round: the centre at -168 is 13 degrees away.
    near = run_script("result = searchGroups(179, 0.02).map((group) => group.opened);", "play/mathematics/groups.js")
    assert near == [True, *[False] * 12]
