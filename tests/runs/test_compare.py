"""Several runs beside each other: what differs, best first, mean and spread, on 80 columns and on a page."""

import io
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from rich.console import Console

from keysift.cli.comparison import print_comparison
from keysift.runs.compare import compare
from keysift.runs.summary import Summary
from keysift.train.config import TrainConfig, flatten
from keysift.train.settings import apply
from keysift.web.sweep_page import sweep_page


def made(
    name: str, validation: float | None, state: str = "finished", accuracy: float | None = None, **settings: Any
) -> Summary:
    config = apply(TrainConfig(steps=200, lr=0.0625, clip=0.0, weight_decay=0.0, warmup=12), settings)
    validations = () if validation is None else ((100, validation + 0.5), (200, validation))
    return Summary(
        path=f"sweeps/models/{name}",
        arch=config.arch,
        settings=flatten(config),
        parameters=1_234_567,
        data=config.data,
        step=200,
        steps=config.steps,
        saved=200,
        state=state,
        loss=2.5,
        val_loss=validation,
        bits_per_byte=None if validation is None else validation / 0.693,
        accuracy=accuracy,
        tokens_per_second=12_345.6,
        losses=(5.0, 4.0, 3.0, 2.5),
        validations=validations,
    )


SEEDS = [
    made("psi-4-a", 2.10, psi=4, seed=0),
    made("psi-4-b", 2.30, psi=4, seed=1),
    made("transformer-with-a-name-that-is-longer-than-any-column", 2.05, arch="transformer", mechanism="ssmax"),
    made("psi-6", 2.00, psi=6, lr=0.01),
    made("broken", None, "diverged", psi=6, seed=1),
]


def rendered(found: list[Summary], width: int) -> str:
    file = io.StringIO()
    print_comparison(compare(found), Console(file=file, width=width, highlight=False))
    return file.getvalue()


def test_best_first_with_mean_and_spread() -> None:
    found = compare(SEEDS)
    assert [one.name for one in found.runs][:1] == ["psi-6"]
    assert [one.name for one in found.runs][-1] == "broken", "runs without a figure come last"
    assert [one.best for one in found.runs] == [True, False, False, False, False]
    assert found.fields == ("lr",), "seed, sizes and mechanism are told apart from settings"
    assert [(group.model, group.seeds) for group in found.groups] == [
        ("multiscreen psi 6, screening", 1),
        ("transformer 4x4x128, ssmax", 1),
        ("multiscreen psi 4, screening", 2),
    ]
    both = found.groups[2]
    assert (both.mean, both.spread) == (pytest.approx(2.2), pytest.approx(0.1414, abs=1e-4))
    assert found.groups[0].spread is None


@pytest.mark.parametrize("width", [80, 60, 120])
def test_no_name_is_lost_at_any_width(width: int) -> None:
    said = rendered(SEEDS, width)
    assert max(map(len, said.splitlines())) <= width
    assert "…" not in said
    lines = said.splitlines()
    head = next(line for line in lines if line.startswith("run"))
    # Names are folded: their column, read downwards, holds them whole.
    column = "".join(line[: head.index("validation") - 1].rstrip() for line in lines[lines.index(head) + 1 :])
    assert all(one.name in column for one in SEEDS)
    first = said.split("Every run, best first")[1]
    assert first.index("psi-6") < first.index("psi-4-a") < first.index("broken")
    assert "2.0000*" in said
    assert "2.2000" in said, "the mean over seeds"
    assert "ssmax" in said, "the mechanism is named"


def test_only_what_differs_is_shown() -> None:
    said = rendered([made("a", 2.0, lr=0.5), made("b", 2.1, lr=0.25)], 80)
    assert "lr" in said
    for word in ("seed", "clip", "state", "model "):
        assert word not in said.splitlines()[1], word
    assert "2 runs, multiscreen psi 8, screening, 1,234,567 parameters, finished, step 200/200" in said
    ablation = compare([made("a", 2.0), made("b", 2.1, gate=False), made("c", 2.2, arch="transformer")])
    assert ablation.fields == ("gate",), "position differs by architecture alone"
    assert [one.differs["gate"] for one in ablation.runs] == ["yes", "no", ""]


def test_what_has_no_room_is_named() -> None:
    assert re.search(r"no room for .*loss curve", " ".join(rendered(SEEDS, 60).split()))
    assert "no room" not in rendered([SEEDS[0]], 160)


def test_names_are_told_apart_and_never_read_as_markup() -> None:
    twins = [replace(SEEDS[0], path="a/run"), replace(SEEDS[1], path="b/run")]
    assert {one.name for one in compare(twins).runs} == {"a/run", "b/run"}
    said = rendered([replace(SEEDS[0], path="x/[abc]\x1b[31m"), SEEDS[1]], 120)
    assert r"[abc]\x1b[31m" in said


def test_models_in_a_few_words() -> None:
    assert made("a", 1.0, depth=2, tiles=3, width=10).model == "multiscreen 2x3x10, screening"
    mixed = made("a", 1.0, arch="transformer", depth=2, heads=2, width=8, mechanism=["softmax", "ssmax"])
    assert mixed.model == "transformer 2x2x8, softmax/ssmax"


def test_the_page_has_curves_labels_hover_and_the_table() -> None:
    page = unescape(sweep_page("Sweep over psi", compare([*SEEDS, replace(SEEDS[0], path="x/<script>")])))
    assert page.count("<svg") == 2
    for one in SEEDS:
        assert page.count(f">{one.name}<") >= 2, "a label on a curve and a row of the table"
    assert "psi-6: 2" in page, "values on hover"
    assert "Mean over seeds" in page
    assert "class='best'" in page
    assert sweep_page("none", compare([]))


def test_accuracy_is_shown_where_there_is_one() -> None:
    runs = [made(f"seed-{seed}", 0.1, accuracy=share, seed=seed) for seed, share in enumerate((0.9, 1.0))]
    found = compare(runs)
    assert found.groups[0].accuracy == pytest.approx(0.95)
    assert compare([runs[0], made("other", 0.1, seed=1)]).groups[0].accuracy is None
    text = rendered(runs, 200)
    assert "accuracy" in text
    assert "95.0%" in text
    assert "accuracy" not in rendered(SEEDS, 200)
