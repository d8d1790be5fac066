"""Non-finite losses and weights: the diagnosis names their origin, and no such checkpoint is saved."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.shards import prepare
from keysift.models.architecture import TransformerArch
from keysift.nn.tile import Tiles
from keysift.runs import layout
from keysift.runs.directory import Run
from keysift.runs.summary import summary
from keysift.train.config import TrainConfig
from keysift.train.manifest import read_manifest
from keysift.train.source import TextSource
from tests.refusals import refuses
from tests.train.in_process import losses, run_training

SMALL = {"model": TransformerArch(depth=1, heads=1, width=8), "save_every": 3, "sample_tokens": 0}


def test_a_non_finite_loss_stops_the_run(tiny: TrainConfig, tmp_path: Path) -> None:
    """The run resumes from the last good checkpoint with a lower rate. Both sessions are recorded."""
    run = run_training(replace(tiny, **SMALL, warmup=0, lr=1e-3, clip=0.0, steps=3), tmp_path / "run")
    before = losses(run)
    with refuses("first seen in .*diagnosis.json has the details; step-0*3 is intact: resume from it with .*--lr"):
        run_training(replace(read_manifest(Run(run)).config, steps=9, lr=1e30), run, resume=True)
    assert summary(run).state == "diverged"
    diagnosis = json.loads((run / "diagnosis.json").read_text())
    assert diagnosis["step"] == len(losses(run)) + 1
    assert diagnosis["lr"] == 1e30
    assert len(diagnosis["sequences"]) == 4
    assert diagnosis["first_output"] or diagnosis["first_parameter"] or diagnosis["first_gradient"]
    assert diagnosis["last_good_checkpoint"] == "step-00000003"
    run_training(replace(read_manifest(Run(run)).config, lr=1e-6), run, resume=True)
    assert summary(run).state == "finished"
    assert losses(run)[:3] == before
    sessions = json.loads((run / "environment.json").read_text())
    assert [session["config"]["lr"] for session in sessions] == [1e-3, 1e30, 1e-6]


def test_non_finite_weights_are_never_saved(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step belongs to the weights before it, so new weights are checked before they are saved."""
    with refuses("the validation loss is nan, first seen in .*; there is no checkpoint yet: start again"):
        run_training(replace(tiny, save_every=1, warmup=0, lr=1e30), tmp_path / "loss")
    step = torch.optim.AdamW.step

    def step_to_infinity(self: torch.optim.AdamW, closure: None = None) -> None:
        step(self, closure)
        self.param_groups[0]["params"][0].data[0] = torch.inf

    monkeypatch.setattr(torch.optim.AdamW, "step", step_to_infinity)
    with refuses("step 1 left non-finite weights, first seen in embedding.weight"):
        run_training(replace(tiny, save_every=1), tmp_path / "weights")
    assert layout.checkpoint_steps(tmp_path / "weights" / "checkpoints") == []


def test_the_diagnosis_names_the_first_non_finite_module(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer outputs NaN in the first of two accumulation steps; gradients carry it to other layers."""
    forward = Tiles.forward
    first_inputs = TextSource(prepare(tiny.data)).training(tiny).batch(0, 0, 2).inputs

    def nan_forward(self: Tiles, x_BTD: torch.Tensor, reading: Any, store: Any) -> torch.Tensor:
        out = forward(self, x_BTD, reading, store)
        return out * torch.nan if self is first_layer[0] and torch.equal(inputs[-1], first_inputs) else out

    inputs: list[torch.Tensor] = []
    first_layer: list[Tiles] = []
    hidden = keysift.Multiscreen.hidden

    def recording_hidden(
        self: keysift.Multiscreen, tokens: torch.Tensor, *arguments: Any, **options: Any
    ) -> torch.Tensor:
        inputs.append(tokens)
        first_layer[:] = [self.layers[0].tiles]
        return hidden(self, tokens, *arguments, **options)

    monkeypatch.setattr(keysift.Multiscreen, "hidden", recording_hidden)
    monkeypatch.setattr(Tiles, "forward", nan_forward)
    with refuses("the loss of step 1 is nan .* first seen in layers.0.tiles"):
        run_training(tiny, tmp_path / "run")
