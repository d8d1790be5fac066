"""Samples, head statistics and trackers: a failure neither stops training nor loses a checkpoint."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keysift.runs import layout
from keysift.train import monitor
from keysift.train.config import TrainConfig
from tests.train.in_process import losses, run_training


def fail(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("deliberate failure")


@pytest.mark.parametrize(
    ("name", "subject"),
    [("sample", "the sample of step 4"), ("head_statistics", "the head statistics of step 4")],
)
def test_a_failed_inspection_is_a_warning(
    tiny: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    subject: str,
) -> None:
    saved_steps = []

    def record_and_fail(*arguments: Any, **options: Any) -> Any:
        saved_steps.append(layout.saved_step(tmp_path / "run"))
        fail()

    monkeypatch.setattr(monitor, name, record_and_fail)
    run_training(tiny, tmp_path / "run", show=True)
    assert saved_steps == [4, 8, 12], "the checkpoint is saved before the inspection"
    assert f"warning: writing {subject} failed (deliberate failure); the checkpoint is saved" in capsys.readouterr().err
    assert len(losses(tmp_path / "run")) == 12


def test_training_with_a_prompt_that_is_not_utf8(tiny: TrainConfig, tmp_path: Path) -> None:
    """A shell passes bytes that are not UTF-8 as lone surrogates."""
    run = run_training(replace(tiny, sample_prompt="\udcff"), tmp_path / "run")
    assert layout.saved_step(run) == 12


def test_a_tracker_that_fails_is_dropped(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_steps = []

    def log(numbers: dict[str, Any], step: int) -> None:
        logged_steps.append(step)
        if step == 3:
            fail()

    tracker = types.ModuleType("wandb")
    tracker.__dict__.update(init=lambda **settings: None, log=log, finish=fail)
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    run_training(replace(tiny, track=("wandb",)), tmp_path / "run", show=True)
    assert logged_steps == [1, 2, 3]
    assert capsys.readouterr().err.count("warning: wandb failed (deliberate failure)") == 1
    assert len(losses(tmp_path / "run")) == 12


def test_head_statistics_are_written_without_samples(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(replace(tiny, sample_tokens=0), tmp_path / "run")
    assert not list((run / layout.SAMPLES).iterdir())
    assert len(json.loads((run / layout.HEADS / "step-00000004.json").read_text())) == 4


def test_head_statistics_use_a_limited_number_of_tokens(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = []
    monkeypatch.setattr(monitor, "MAX_INSPECTED_TOKENS", 8)
    monkeypatch.setattr(monitor, "head_statistics", lambda model, tokens: shapes.append(tokens.shape) or [])
    run_training(tiny, tmp_path / "run")
    assert shapes == [(1, 8)] * 3


def test_samples_are_printed_escaped(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(monitor, "sample", lambda *arguments: "def f():\n    \x1b]0;title\x07")
    run = run_training(tiny, tmp_path / "run", show=True)
    stderr = capsys.readouterr().err
    assert stderr.count("  | def f():\n  |     \\x1b]0;title\\x07\n") == 3
    assert "\x1b]" in (run / layout.SAMPLES / "step-00000004.txt").read_text(), "the file contains the text unescaped"
