"""A non-finite loss: where it began, and that nothing broken is kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.shards import prepare
from keysift.models.arch import TransformerArch
from keysift.nn.tile import Tiles
from keysift.runs import layout
from keysift.runs.directory import Run
from keysift.runs.summary import summary
from keysift.train.config import TrainConfig
from keysift.train.facts import read_facts
from keysift.train.source import Text
from tests.refusals import refuses
from tests.train.in_process import go, losses

SMALL = {"model": TransformerArch(depth=1, heads=1, width=8), "save_every": 3, "sample_tokens": 0}


def test_a_non_finite_loss(tiny: TrainConfig, tmp_path: Path) -> None:
    """And the way out: the last good checkpoint is resumed with a lower rate, and the record keeps both."""
    run = go(replace(tiny, **SMALL, warmup=0, lr=1e-3, clip=0.0, steps=3), tmp_path / "run")
    before = losses(run)
    with refuses("first seen in .*diagnosis.json has the details; step-0*3 is whole: resume from it with .*--lr"):
        go(replace(read_facts(Run(run)).config, steps=9, lr=1e30), run, resume=True)
    assert summary(run).state == "diverged"
    told = json.loads((run / "diagnosis.json").read_text())
    assert told["step"] == len(losses(run)) + 1
    assert told["lr"] == 1e30
    assert len(told["sequences"]) == 4
    assert told["first_output"] or told["first_parameter"] or told["first_gradient"]
    assert told["last_good_checkpoint"] == "step-00000003"
    go(replace(read_facts(Run(run)).config, lr=1e-6), run, resume=True)
    assert summary(run).state == "finished"
    assert losses(run)[:3] == before
    sessions = json.loads((run / "environment.json").read_text())
    assert [session["config"]["lr"] for session in sessions] == [1e-3, 1e30, 1e-6]


def test_broken_weights_are_never_saved(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step is that of the weights before it: what the step leaves is looked at before it is kept."""
    with refuses("the validation loss is nan, first seen in .*; there is no checkpoint yet: start again"):
        go(replace(tiny, save_every=1, warmup=0, lr=1e30), tmp_path / "loss")
    step = torch.optim.AdamW.step

    def break_one(self: torch.optim.AdamW, closure: None = None) -> None:
        step(self, closure)
        self.param_groups[0]["params"][0].data[0] = torch.inf

    monkeypatch.setattr(torch.optim.AdamW, "step", break_one)
    with refuses("step 1 left non-finite weights, first seen in embedding.weight"):
        go(replace(tiny, save_every=1), tmp_path / "weights")
    assert layout.steps(tmp_path / "weights" / "checkpoints") == []


def test_the_accumulation_step_that_broke_is_found(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of two accumulation steps meets a non-finite number, in the first layer; gradients spread it."""
    forward = Tiles.forward
    first = Text(prepare(tiny.data)).training(tiny).batch(0, 0, 2).inputs

    def breaks(self: Tiles, x_BTD: torch.Tensor, reading: Any, store: Any) -> torch.Tensor:
        out = forward(self, x_BTD, reading, store)
        return out * torch.nan if self is seen[0] and torch.equal(told[-1], first) else out

    told: list[torch.Tensor] = []
    seen: list[Tiles] = []
    hidden = keysift.Multiscreen.hidden

    def listen(self: keysift.Multiscreen, tokens: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        told.append(tokens)
        seen[:] = [self.layers[0].tiles]
        return hidden(self, tokens, *rest, **options)

    monkeypatch.setattr(keysift.Multiscreen, "hidden", listen)
    monkeypatch.setattr(Tiles, "forward", breaks)
    with refuses("the loss of step 1 is nan .* first seen in layers.0.tiles"):
        go(tiny, tmp_path / "run")
