"""Records and `keysift eval stability` agree on whether a run diverged."""

import json
from pathlib import Path

import pytest

from evidence.records import make_record
from keysift.runs.layout import ENVIRONMENT, METRICS
from keysift.sweep.trials import read_trials
from tests.runs.handwritten import STEPS, WARMUP, falling, write_run


@pytest.mark.parametrize(
    ("losses", "init", "state"),
    [
        (falling(3.0), None, "finished"),
        ([5.0, *[9.0] * (WARMUP - 1), *[6.0] * (STEPS - WARMUP)], None, "diverged"),
        ([2.9, *[3.0, 3.1] * 19, 3.0], None, "diverged"),
        ([2.9, *[3.0, 3.1] * 19, 3.0], "base", "finished"),
    ],
)
def test_records_and_trials_agree_on_divergence(
    losses: list[float], init: str | None, state: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    write_run(run, losses, init=init)
    lines = [{"step": n, "loss": loss, "seconds": float(n)} for n, loss in enumerate(losses, 1)]
    (run / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / ENVIRONMENT).write_text("[]")
    stored, (trial,) = make_record("run", run, {}, {}), read_trials([tmp_path])
    assert stored.state == trial.state == state
    assert stored.warmup_loss == trial.warmup_loss


def test_an_incomplete_run_counts_as_diverged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, falling(3.0)[:30], saved=30)
    (run / METRICS).write_text('{"step": 30, "loss": 5.0, "seconds": 30.0}\n')
    (run / ENVIRONMENT).write_text("[]")
    assert make_record("run", run, {}, {}).state == "diverged"
