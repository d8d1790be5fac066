"""Comparison of several runs: settings that differ, best run first, mean over seeds, as a table and as a page."""

import io
import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from rich.console import Console

from keysift.cli.terminal.run_table import print_comparison
from keysift.records.runs import RunSummary
from keysift.runs.compare import compare
from keysift.train.config import TrainConfig, flatten
from keysift.train.settings import apply
from keysift.web.report.sweep_page import sweep_page


def run_summary(
    name: str, validation: float | None, state: str = "finished", accuracy: float | None = None, **settings: Any
) -> RunSummary:
    config = apply(TrainConfig(steps=200, lr=0.0625, clip=0.0, weight_decay=0.0, warmup=12), settings)
    validations = () if validation is None else ((100, validation + 0.5), (200, validation))
    return RunSummary(
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
    run_summary("psi-4-a", 2.10, psi=4, seed=0),
    run_summary("psi-4-b", 2.30, psi=4, seed=1),
    run_summary("transformer-with-a-name-that-is-longer-than-any-column", 2.05, arch="transformer", mechanism="ssmax"),
    run_summary("psi-6", 2.00, psi=6, lr=0.01),
    run_summary("broken", None, "diverged", psi=6, seed=1),
]


def render(runs: list[RunSummary], width: int) -> str:
    file = io.StringIO()
    print_comparison(compare(runs), Console(file=file, width=width, highlight=False))
    return file.getvalue()


def test_best_run_first_with_mean_and_std_over_seeds() -> None:
    comparison = compare(SEEDS)
    assert [run.name for run in comparison.runs][:1] == ["psi-6"]
    assert [run.name for run in comparison.runs][-1] == "broken", "runs without a validation loss come last"
    assert [run.best for run in comparison.runs] == [True, False, False, False, False]
    assert comparison.fields == ("lr",), "seed, sizes and mechanism are not listed as settings"
    assert [(group.model, len(group.val_losses)) for group in comparison.groups] == [
        ("multiscreen psi 6, screening", 1),
        ("transformer 4x4x128, ssmax", 1),
        ("multiscreen psi 4, screening", 2),
    ]
    two_seeds = comparison.groups[2]
    assert (two_seeds.val_losses.mean, two_seeds.val_losses.std) == (
        pytest.approx(2.2),
        pytest.approx(0.1414, abs=1e-4),
    )
    assert comparison.groups[0].val_losses.std is None


@pytest.mark.parametrize("width", [80, 60, 120])
def test_names_are_complete_at_any_width(width: int) -> None:
    output = render(SEEDS, width)
    assert max(map(len, output.splitlines())) <= width
    assert "…" not in output
    lines = output.splitlines()
    header = next(line for line in lines if line.startswith("run"))
    # Long names are wrapped: joining the lines of the column restores them.
    column = "".join(line[: header.index("validation") - 1].rstrip() for line in lines[lines.index(header) + 1 :])
    assert all(run.name in column for run in SEEDS)
    table = output.split("Every run, best first")[1]
    assert table.index("psi-6") < table.index("psi-4-a") < table.index("broken")
    assert "2.0000*" in output
    assert "2.2000" in output, "the mean over seeds"
    assert "ssmax" in output, "the mechanism is named"


def test_only_settings_that_differ_are_shown() -> None:
    output = render([run_summary("a", 2.0, lr=0.5), run_summary("b", 2.1, lr=0.25)], 80)
    assert "lr" in output
    for word in ("seed", "clip", "state", "model "):
        assert word not in output.splitlines()[1], word
    assert "2 runs, multiscreen psi 8, screening, 1,234,567 parameters, finished, step 200/200" in output
    ablation = compare(
        [run_summary("a", 2.0), run_summary("b", 2.1, gate=False), run_summary("c", 2.2, arch="transformer")]
    )
    assert ablation.fields == ("gate",), "position differs by architecture only"
    assert [run.differs["gate"] for run in ablation.runs] == ["yes", "no", ""]


def test_hidden_columns_are_named() -> None:
    assert re.search(r"not shown: .*loss curve", " ".join(render(SEEDS, 60).split()))
    assert "not shown" not in render([SEEDS[0]], 160)


def test_names_are_unique_and_escaped() -> None:
    twins = [replace(SEEDS[0], path="a/run"), replace(SEEDS[1], path="b/run")]
    assert {run.name for run in compare(twins).runs} == {"a/run", "b/run"}
    output = render([replace(SEEDS[0], path="x/[abc]\x1b[31m"), SEEDS[1]], 120)
    assert r"[abc]\x1b[31m" in output


def test_model_description() -> None:
    assert run_summary("a", 1.0, depth=2, tiles=3, width=10).model == "multiscreen 2x3x10, screening"
    mixed = run_summary("a", 1.0, arch="transformer", depth=2, heads=2, width=8, mechanism=["softmax", "ssmax"])
    assert mixed.model == "transformer 2x2x8, softmax/ssmax"


def test_sweep_page_has_curves_and_table() -> None:
    page = unescape(sweep_page("Sweep over psi", compare([*SEEDS, replace(SEEDS[0], path="x/<script>")])))
    assert page.count("<svg") == 2
    for run in SEEDS:
        assert f">{run.name}<" in page, "the directory of every run"
    for group in ("multiscreen psi 4, lr 0.0625", "multiscreen psi 6, lr 0.01", "transformer, lr 0.0625"):
        assert page.count(f">{group}<") >= 3, "a label on two curves and in a table"
    assert "multiscreen psi 6, lr 0.01: 2" in page, "values on hover"
    assert "Mean over seeds" in page
    assert "class='best'" in page
    assert sweep_page("none", compare([]))


def test_accuracy_is_shown_if_measured() -> None:
    runs = [run_summary(f"seed-{seed}", 0.1, accuracy=accuracy, seed=seed) for seed, accuracy in enumerate((0.9, 1.0))]
    comparison = compare(runs)
    assert comparison.groups[0].accuracy == pytest.approx(0.95)
    assert compare([runs[0], run_summary("other", 0.1, seed=1)]).groups[0].accuracy is None
    text = render(runs, 200)
    assert "accuracy" in text
    assert "95.0%" in text
    assert "accuracy" not in render(SEEDS, 200)


def test_the_column_that_sorts_the_runs_is_shown_on_a_narrow_terminal() -> None:
    header = next(line for line in render(SEEDS, 60).splitlines() if line.startswith("run"))
    assert header.split()[:3] == ["run", "validation", "bits/byte"]
