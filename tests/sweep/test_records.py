"""Records say of a run what `keysift eval stability` says of it."""

import json
from pathlib import Path

import pytest

from keysift.evaluate.trials import trials
from keysift.runs.layout import ENVIRONMENT, METRICS
from keysift.sweep.records import record
from tests.runs.written import STEPS, WARMUP, falling, write_run


@pytest.mark.parametrize(
    ("losses", "init", "state"),
    [
        (falling(3.0), None, "finished"),
        ([5.0, *[9.0] * (WARMUP - 1), *[6.0] * (STEPS - WARMUP)], None, "diverged"),
        ([2.9, *[3.0, 3.1] * 19, 3.0], None, "diverged"),
        ([2.9, *[3.0, 3.1] * 19, 3.0], "base", "finished"),
    ],
)
def test_the_rule_of_divergence_is_one(losses: list[float], init: str | None, state: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, losses, init=init)
    lines = [{"step": n, "loss": loss, "seconds": float(n)} for n, loss in enumerate(losses, 1)]
    (run / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / ENVIRONMENT).write_text("[]")
    found, (trial,) = record("run", run, {}, {}), trials([tmp_path])
    assert found.state == trial.state == state
    assert found.warmed == trial.warmed


def test_a_run_that_is_over_and_not_whole_does_not_count(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, falling(3.0)[:30], saved=30)
    (run / METRICS).write_text('{"step": 30, "loss": 5.0, "seconds": 30.0}\n')
    (run / ENVIRONMENT).write_text("[]")
    assert record("run", run, {}, {}).state == "diverged"
