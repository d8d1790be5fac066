"""Stability and scaling of handwritten runs: diverged runs are shown but not averaged."""

import math
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from keysift.core.statistics import Sample
from keysift.records.trials import Scaling, Stability
from keysift.sweep.trials import read_trials
from keysift.web.figures import runs as run_figures
from tests.runs.handwritten import PROVENANCE, STEPS, WARMUP, falling, write_run


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


def test_diverged_runs_are_shown_but_not_averaged(sweep: Path) -> None:
    record = Stability(source="", trials=read_trials([sweep]), made=PROVENANCE)
    low, middle, high = record.points
    assert (low.rate, low.losses, low.diverged) == (0.01, Sample(values=(3.5, 2.5)), 0)
    assert (middle.losses, middle.diverged) == (Sample(values=(1.5,)), 1)
    assert (high.losses, high.diverged) == (None, 2), "ends above its loss after the warm-up, or above its first loss"
    best = record.best(low.name)
    assert best is not None
    assert best.rate == 0.01, "a rate at which a seed diverged is never the best"
    assert {run.state for run in record.trials} == {"finished", "diverged", "stopped"}
    axes = Figure().subplots()
    run_figures.stability(record)(axes)
    crosses = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "x"]
    assert sorted(set(crosses)) == [0.1, 1.0]


def test_scaling_uses_the_best_rate_of_each_size(tmp_path: Path) -> None:
    for psi, rate, seed, end in ((4, 0.01, 0, 3.0), (4, 0.1, 0, 2.0), (4, 0.1, 1, 2.2), (6, 0.01, 0, 1.0)):
        write_run(tmp_path / f"{psi}-{rate}-{seed}", falling(end), parameters=100 * psi, lr=rate, seed=seed, psi=psi)
    transformer = {"arch": "transformer", "psi": None, "mechanism": "ssmax"}
    write_run(tmp_path / "transformer", falling(1.5), parameters=500, lr=0.01, **transformer)
    points = Scaling(source="", trials=read_trials([tmp_path]), made=PROVENANCE).points
    assert [(p.name, p.parameters, p.rate, p.losses and p.losses.values) for p in points] == [
        ("multiscreen, screening", 400, 0.1, (2.5, 2.7)),
        ("multiscreen, screening", 600, 0.01, (1.5,)),
        ("transformer, ssmax", 500, 0.01, (2.0,)),
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
    ids=["noise in the first batch", "trained from scratch", "noise in the last batches", "rising loss", "not finite"],
)
def test_fine_tuning_without_improvement_is_not_divergence(
    losses: list[float], init: str | None, state: str, tmp_path: Path
) -> None:
    """A pretrained model may not improve, so noise above its first loss is not divergence."""
    write_run(tmp_path / "run", losses, init=init)
    (trial,) = read_trials([tmp_path])
    assert trial.state == state
