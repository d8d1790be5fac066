"""What is optional at a checkpoint never costs the checkpoint."""

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keysift.runs import layout
from keysift.train import inspection
from keysift.train.config import TrainConfig
from tests.train.in_process import go, losses


def fail(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("no such luck")


@pytest.mark.parametrize(
    ("name", "what"), [("sample", "the sample of step 4"), ("heads", "the inspection of the heads of step 4")]
)
def test_a_failure_is_a_warning_after_the_checkpoint(
    tiny: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    what: str,
) -> None:
    saved = []

    def late(*arguments: Any, **options: Any) -> Any:
        saved.append(layout.saved(tmp_path / "run"))
        fail()

    monkeypatch.setattr(inspection, name, late)
    go(tiny, tmp_path / "run", show=True)
    assert saved == [4, 8, 12], "each was saved before"
    assert f"warning: {what} failed (no such luck); the checkpoint is saved" in capsys.readouterr().err
    assert len(losses(tmp_path / "run")) == 12


def test_a_prompt_that_cannot_be_written(tiny: TrainConfig, tmp_path: Path) -> None:
    """What a shell passes on for bytes that are not UTF-8."""
    run = go(replace(tiny, sample_prompt="\udcff"), tmp_path / "run")
    assert layout.saved(run) == 12


def test_a_tracker_that_fails_is_dropped(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard = []

    def log(numbers: dict[str, Any], step: int) -> None:
        heard.append(step)
        if step == 3:
            fail()

    tracker = types.ModuleType("wandb")
    tracker.__dict__.update(init=lambda **settings: None, log=log, finish=fail)
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    go(replace(tiny, track=("wandb",)), tmp_path / "run", show=True)
    assert heard == [1, 2, 3]
    assert capsys.readouterr().err.count("warning: wandb failed (no such luck)") == 1
    assert len(losses(tmp_path / "run")) == 12


def test_heads_are_written_beside_the_samples(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, sample_tokens=0), tmp_path / "run")
    assert not list((run / layout.SAMPLES).iterdir())
    assert len(json.loads((run / layout.HEADS / "step-00000004.json").read_text())) == 4


def test_heads_are_inspected_on_a_bounded_text(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(inspection, "LONGEST", 8)
    monkeypatch.setattr(inspection, "heads", lambda model, tokens: seen.append(tokens.shape) or [])
    go(tiny, tmp_path / "run")
    assert seen == [(1, 8)] * 3


def test_samples_reach_the_terminal(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection, "sample", lambda *rest: "def one():\n    \x1b]0;title\x07")
    run = go(tiny, tmp_path / "run", show=True)
    said = capsys.readouterr().err
    assert said.count("  | def one():\n  |     \\x1b]0;title\\x07\n") == 3
    assert "\x1b]" in (run / layout.SAMPLES / "step-00000004.txt").read_text(), "the file holds the very text"
