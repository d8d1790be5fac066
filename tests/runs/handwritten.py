"""Handwritten run directories, for tests of code that reads runs without loading a model."""

import json
import math
from pathlib import Path
from typing import Any

from keysift.core.provenance import Machine, Provenance
from keysift.runs.layout import CHECKPOINTS, DIAGNOSIS, ENVIRONMENT, MANIFEST, METRICS, SAMPLES, TRAIN, checkpoint_name
from keysift.train.config import TrainConfig, flatten
from keysift.train.settings import apply

MACHINE = Machine(
    cpu="", cores=1, threads=1, memory_gb=1, instruction_set="", python="", torch="", keysift="", commit="", load=0
)
PROVENANCE = Provenance(command="keysift eval", date="", seconds=0, machine=MACHINE)
STEPS, WARMUP = 40, 20


def write_run(path: Path, losses: list[float], parameters: int = 1000, saved: int = STEPS, **settings: Any) -> None:
    """Write a run directory with these losses and a checkpoint at step `saved`. A non-finite last loss diverged."""
    config = apply(TrainConfig(), {"steps": STEPS, "warmup": WARMUP, "psi": 4, **settings})
    (path / CHECKPOINTS / checkpoint_name(saved)).mkdir(parents=True)
    (path / CHECKPOINTS / checkpoint_name(saved) / MANIFEST).write_text("{}")
    (path / TRAIN).write_text(
        json.dumps({"config": flatten(config), "parameters": parameters, "stream": "abc", "flops_per_token": 1e6})
    )
    (path / ENVIRONMENT).write_text(json.dumps([{"command": ["/bin/keysift", "train", "--out", str(path)]}]))
    (path / SAMPLES).mkdir()
    (path / SAMPLES / f"{checkpoint_name(saved)}.txt").write_text("def <script>alert(1)</script>")
    lines = [{"step": n, "loss": loss} for n, loss in enumerate(losses, 1)]
    if math.isfinite(losses[-1]):
        lines[-1]["val_loss"] = losses[-1] + 0.5
    else:
        (path / DIAGNOSIS).write_text("{}")
    (path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def falling(end: float) -> list[float]:
    """Losses of a run: 5.0 during warmup, then `end`."""
    return [5.0] * WARMUP + [end] * (STEPS - WARMUP)
