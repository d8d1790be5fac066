"""Runs compared by rate and by size, from run directories written by hand: what diverged is shown and not averaged."""

import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from keysift.evaluate.measured_runs import Scaling, Stability
from keysift.evaluate.trials import trials
from keysift.web import run_figures
from tests.runs.written import MADE, STEPS, WARMUP, falling, write_run


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for rate, seed, losses in (
        (0.01, 0, falling(3.0)),
        (0.01, 1, falling(2.0)),
        (0.1, 0, falling(1.0)),
        (0.1, 1, [*[5.0] * WARMUP, math.nan]),
        (1.0, 0, [*[5.0] * WARMUP, *[5.1] * (STEPS - WARMUP)]),
        (1.0, 1, [5.0, *[9.0] * (WARMUP - 1), *[6.0] * (STEPS - WARMUP)]),
    ):
        write_run(tmp_path / f"{rate}-{seed}", losses, lr=rate, seed=seed)
    write_run(tmp_path / "unfinished", falling(0.1)[:30], lr=0.01, seed=2, saved=30)
    return tmp_path


def test_diverged_runs_are_shown_and_not_averaged(sweep: Path) -> None:
    record = Stability(source="", trials=trials([sweep]), made=MADE)
    low, middle, high = record.points
    assert (low.rate, low.mean, low.deviation, low.seeds, low.diverged) == (0.01, 3.0, pytest.approx(0.5**0.5), 2, 0)
    assert (middle.mean, middle.deviation, middle.seeds, middle.diverged) == (1.5, None, 1, 1)
    assert (high.mean, high.seeds, high.diverged) == (None, 0, 2), "above where the warm-up left it, or where it began"
    best = record.best(low.name)
    assert best is not None
    assert best.rate == 0.01, "a rate at which a seed diverged is not the best"
    assert {one.state for one in record.trials} == {"finished", "diverged", "stopped"}
    axes = Figure().subplots()
    run_figures.stability(record)(axes)
    crosses = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "x"]
    assert sorted(set(crosses)) == [0.1, 1.0]


def test_scaling_takes_each_size_at_its_best_rate(tmp_path: Path) -> None:
    for psi, rate, seed, end in ((4, 0.01, 0, 3.0), (4, 0.1, 0, 2.0), (4, 0.1, 1, 2.2), (6, 0.01, 0, 1.0)):
        write_run(tmp_path / f"{psi}-{rate}-{seed}", falling(end), parameters=100 * psi, lr=rate, seed=seed, psi=psi)
    other = {"arch": "transformer", "psi": None, "mechanism": "ssmax"}
    write_run(tmp_path / "other", falling(1.5), parameters=500, lr=0.01, **other)
    points = Scaling(source="", trials=trials([tmp_path]), made=MADE).points
    assert [(p.name, p.parameters, p.rate, p.mean, p.seeds) for p in points] == [
        ("multiscreen, screening", 400, 0.1, pytest.approx(2.6), 2),
        ("multiscreen, screening", 600, 0.01, 1.5, 1),
        ("transformer, ssmax", 500, 0.01, 2.0, 1),
    ]


@pytest.mark.parametrize(
    ("losses", "init", "state"),
    [
        ([2.9, *[3.0, 3.1] * 19, 3.0], "base", "finished"),
        ([2.9, *[3.0, 3.1] * 19, 3.0], None, "diverged"),
        ([*[3.0, 3.1] * 10, *[3.05, 3.1] * 10], "base", "finished"),
        ([*[3.0, 3.1] * 10, *[3.3, 3.4] * 10], "base", "diverged"),
        ([*[3.0, 3.1] * 10, *[3.0, math.nan] * 10], "base", "diverged"),
    ],
    ids=["noise in the first batch", "a model that learned nothing", "noise in the last ones", "worse", "not finite"],
)
def test_a_model_that_was_trained_before_may_stay_where_it_was(
    losses: list[float], init: str | None, state: str, tmp_path: Path
) -> None:
    """Its first loss is one batch at a level it may never leave."""
    write_run(tmp_path / "run", losses, init=init)
    (trial,) = trials([tmp_path])
    assert trial.state == state
