"""Interrupted sweeps: after a signal or kill -9, the same command resumes every run with identical results."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.runs import layout
from keysift.runs.checkpoint import update_last_link
from keysift.runs.directory import Run
from keysift.runs.metrics import last
from keysift.runs.summary import find_runs, summary
from keysift.sweep.drive import sweep
from keysift.sweep.plan import plan_runs
from keysift.train.config import TrainConfig
from keysift.train.loop import train
from keysift.train.manifest import read_manifest
from keysift.train.settings import to_toml
from tests.forked_process import ForkedProcess
from tests.train.in_process import losses
from tests.train.processes import ROOT, environment, finish
from tests.train.test_faults import soak_only

AXES = ("seed=0,1,2",)


def start(config: TrainConfig, out: Path, *more: str) -> ForkedProcess:
    """Start the sweep command in its own process group, with the base config as flags."""
    flags = ["--psi", "2", "--data", config.data, "--context", "16", "--batch-tokens", "64", "--micro-tokens", "32"]
    flags += ["--steps", str(config.steps), "--save-every", "5", "--val-sequences", "4", "--sample-tokens", "0"]
    command = [sys.executable, "-m", "keysift", "sweep", "--over", *AXES, "--out", str(out), *flags, *more]
    return ForkedProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment()
    )


@pytest.fixture
def base(tiny: TrainConfig) -> TrainConfig:
    return replace(tiny, steps=120, save_every=5, sample_tokens=0)


def wait_for(run: Path, step: int) -> None:
    deadline = time.monotonic() + 240
    while last(run / layout.METRICS).get("step", 0) < step:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_an_interrupted_sweep_resumes(base: TrainConfig, tmp_path: Path) -> None:
    """Three times in the second run, each time with another signal. At the end every loss is that of plain training."""
    out = tmp_path / "sweep"
    process = start(base, out)
    saved, done = 0, 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        wait_for(out / "seed=1", saved + 7)
        if number is signal.SIGTERM:
            process.terminate()  # like a scheduler: signal only the sweep, which must forward it
        else:
            os.killpg(process.pid, number)
        finish(process, code=-9 if number is signal.SIGKILL else 0)
        assert layout.checkpoint_steps(out / "seed=0" / "checkpoints")[-1] == base.steps
        saved, before = layout.checkpoint_steps(out / "seed=1" / "checkpoints")[-1], saved
        assert before < saved < base.steps
        assert not (out / "seed=2").exists(), "no run starts after the signal"
        if number is not signal.SIGKILL:
            assert saved == len(losses(out / "seed=1")), "the active run saves its last step"
            assert [outcome["state"] for outcome in json.loads((out / "sweep.json").read_text())] == [
                "finished",
                "stopped",
                "not started",
            ]
        done = done or (out / "seed=0" / layout.METRICS).stat().st_mtime_ns
        process = start(base, out)
    finish(process)
    assert (out / "seed=0" / layout.METRICS).stat().st_mtime_ns == done, "finished runs are not changed"
    for name, config in plan_runs(base, (), AXES).items():
        train(config, tmp_path / "uninterrupted" / name, show=False)
        assert losses(out / name) == losses(tmp_path / "uninterrupted" / name)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "stride"), [(19, 37), soak_only(1, 1)])
def test_kill_nine_before_every_change_to_the_folder(corpus: Path, tmp_path: Path, first: int, stride: int) -> None:
    command = [sys.executable, "-m", "tests.sweep.crash_points", str(corpus), str(tmp_path), str(first), str(stride)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd=ROOT)
    assert process.returncode == 0, process.stderr[-3000:]
    points = [json.loads(line) for line in process.stdout.splitlines()]
    assert [point for point in points if not point["exact"] or point["left"]] == []
    # Two runs of two checkpoints, and the sweep's own files before, between and after.
    assert len(points) >= 140 // stride
    places = {point["before"].split("/")[1] for point in points if "/" in point["before"]}
    assert {"seed=0", "seed=1"} <= places
    if stride == 1:
        assert "seed=1.log" in places
        assert sum(place.startswith(".writing-") for place in places) >= 4, "two configs, a record and a page"


def test_the_link_of_a_finished_run_is_repaired(base: TrainConfig, tmp_path: Path) -> None:
    """A run killed between its last checkpoint and the link to it loads an older model until the sweep repairs it."""
    (run,) = (tmp_path / name for name in plan_runs(replace(base, steps=2), (), ("seed=0",)))
    config = replace(base, steps=2, save_every=1)
    train(config, run, show=False)
    (tmp_path / "seed=0.toml").write_text(to_toml(config))
    newest = keysift.load(run).state_dict()
    ended: list[str] = []

    def run_again() -> str:
        (outcome,) = sweep(
            {"seed=0": config}, tmp_path, processes=1, show=False, on_end=lambda outcome: ended.append(outcome.name)
        )
        return outcome.error

    other_process = Run(run)
    other_process.lock()
    assert run_again() == "", "a run that another process trains is left alone"
    other_process.unlock()
    ended.clear()
    update_last_link(run / layout.CHECKPOINTS, layout.checkpoint_name(1))
    assert not torch.equal(keysift.load(run).state_dict()["embedding.weight"], newest["embedding.weight"])
    assert run_again() == ""
    assert torch.equal(keysift.load(run).state_dict()["embedding.weight"], newest["embedding.weight"])
    (run / layout.CHECKPOINTS / layout.checkpoint_name(2) / "model.safetensors").write_bytes(b"damaged")
    assert "model.safetensors is corrupt" in run_again()
    assert ended == ["seed=0"], "on_end is not called for a damaged run"


@pytest.mark.slow
@pytest.mark.parametrize("steps", [6, soak_only(300)])
def test_a_reader_in_a_loop_never_fails(base: TrainConfig, tmp_path: Path, steps: int) -> None:
    """Only the newest checkpoint is kept, so checkpoints are removed while they are being read."""
    out = tmp_path / "sweep"
    process = start(replace(base, steps=steps), out, "--save-every", "1", "--keep-last", "1")
    loaded = listed = 0
    while process.poll() is None:
        for run in find_runs(out):
            assert summary(run).step <= steps
            listed += 1
            if (run / "model.safetensors").exists():
                keysift.load(run)
                loaded += 1
        if (out / "sweep.json").exists():
            json.loads((out / "sweep.json").read_text())
    finish(process)
    assert loaded > steps, f"only {loaded} models and {listed} summaries were read"


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_more_steps_extend_a_sweep(base: TrainConfig, tmp_path: Path) -> None:
    short = plan_runs(replace(base, steps=5), (), ("seed=0",))
    sweep(short, tmp_path, processes=1, show=False)
    longer = sweep(plan_runs(replace(base, steps=64), (), ("seed=0,1",)), tmp_path, processes=2, show=False)
    assert [(outcome.state, outcome.summary.step) for outcome in longer if outcome.summary] == [("finished", 64)] * 2
    # All runs of a sweep share the warm-up of the first: a sixteenth of 5 steps, not of 64.
    assert [read_manifest(Run(tmp_path / f"seed={seed}")).config.warmup for seed in (0, 1)] == [0, 0]


@pytest.mark.slow
def test_nothing_beside_the_text_is_imported(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's folder may hold files named like modules; a run of a sweep started there must not execute them."""
    for name in ("numpy", "random", "torch", "keysift"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    config = replace(tiny, steps=1, save_every=1, val_sequences=1, sample_tokens=0)
    (outcome,) = sweep(plan_runs(config, (), ("seed=0",)), tmp_path / "sweep", processes=1, show=False)
    assert outcome.state == "finished", outcome.error
    assert not (tmp_path / "executed").exists()
