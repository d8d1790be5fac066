"""The demo's training: a small Multiscreen on the built-in corpus for a given time, sampled before and after."""

from pathlib import Path

import torch

from keysift.data.tokenizer import Bytes
from keysift.models.arch import MultiscreenArch
from keysift.models.kinds import build
from keysift.models.language import count
from keysift.models.save import load
from keysift.nn.inference import Inference
from keysift.runs.layout import METRICS
from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.loop import train
from keysift.train.record import DemoTraining
from keysift.train.samples import sample
from keysift.train.setup import model_config

PROMPT, LENGTH = "def ", 160


def demo_training(seconds: float, out: Path, *, show: bool = True) -> DemoTraining:
    """Trains in `out`, a new run."""
    config = TrainConfig(
        model=MultiscreenArch.psi(6), context=128, minutes=seconds / 60, sample_tokens=0, save_every=1_000_000
    )
    untrained = build(
        model_config(config, Bytes.vocab_size),
        torch.Generator().manual_seed(config.seed),
    )
    before = sample(untrained.eval(), Bytes(), PROMPT, LENGTH)
    train(config, out, show=show)
    model = load(out).eval()
    lines = list(read(out / METRICS))
    windows = [scalars.stored(Inference())["window"].tolist() for scalars in model._scalars()]
    return DemoTraining(
        parameters=count(model),
        seconds=lines[-1]["seconds"],
        context=config.context,
        losses=tuple(line["loss"] for line in lines),
        windows=tuple(map(tuple, windows)),
        before=before,
        after=sample(model, Bytes(), PROMPT, LENGTH),
    )
