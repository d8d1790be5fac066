"""What the training loop adds to bare steps, and Multiscreen beside a Transformer of its size.

Each pair takes turns in one process, and ratios are taken step by step. The loop is timed only after its losses were
found equal to those of the bare steps.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from keysift.bench.gather import Gathered, Say
from keysift.bench.record import Result, Row
from keysift.bench.timing import row
from keysift.core.config import config as frozen
from keysift.core.errors import TrainingError
from keysift.data.batches import Batch
from keysift.data.shards import prepare
from keysift.evaluate.validation import summed_loss, targets
from keysift.models.arch import MultiscreenArch, TransformerArch
from keysift.models.kinds import build, empty
from keysift.models.language import LanguageModel, count
from keysift.runs import machine
from keysift.train.config import TrainConfig, resolve
from keysift.train.loop import train
from keysift.train.optimizer import adamw, set_lr
from keysift.train.schedule import share
from keysift.train.setup import model_config
from keysift.train.source import Text


@frozen
class Sizes:
    psi: int = 8
    context: int = 512
    batch_tokens: int = 2048
    steps: int = 20
    """Of each kind, beside a few that warm caches."""
    data: str = "stdlib"


FULL = Sizes()
QUICK = Sizes(psi=4, steps=8)


def measure(sizes: Sizes, *, command: str, say: Say) -> Result:
    found = Gathered(machine.examine(), say)
    config = plan(sizes)
    with tempfile.TemporaryDirectory() as folder:
        say("the training loop against bare steps")
        found.rows.append(overhead(config, Path(folder) / "run"))
    say("Multiscreen against the Transformer nearest in size")
    found.rows.append(side_by_side(config))
    return found.result("train", command)


def plan(sizes: Sizes) -> TrainConfig:
    return TrainConfig(
        model=MultiscreenArch.psi(sizes.psi),
        context=sizes.context,
        batch_tokens=sizes.batch_tokens,
        micro_tokens=sizes.batch_tokens,
        steps=sizes.steps + 3,
        data=sizes.data,
        save_every=1_000_000,
        sample_tokens=0,
        val_sequences=1,
    )


class Bare:
    """Forward, backward, step: what any loop must do, and nothing else."""

    def __init__(self, config: TrainConfig, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(config.seed)
        self.model: LanguageModel = build(model_config(config, vocab_size), generator)
        self.config = resolve(config, count(self.model))
        self.optimizer = adamw(dict(self.model.named_parameters()), self.config)

    def step(self, number: int, batch: Batch) -> tuple[float, float]:
        """Loss and seconds; the batch is in memory already."""
        began = time.perf_counter()
        set_lr(self.optimizer, (self.config.lr or 0.0) * share(self.config, number))
        self.optimizer.zero_grad(set_to_none=True)
        loss = summed_loss(self.model, batch) / targets(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach()), time.perf_counter() - began


def overhead(config: TrainConfig, out: Path) -> Row:
    """The time of the loop's steps over the time of bare steps on the same batches, taken in turn."""
    corpus = prepare(config.data, config.tokenizer)
    bare = Bare(config, corpus.index.vocab_size)
    batches = Text(corpus).training(config)
    took: dict[str, list[float]] = {"loop": [], "bare": []}
    left = time.perf_counter()

    def compare(line: dict[str, Any]) -> None:
        nonlocal left
        took["loop"].append(time.perf_counter() - left)
        batch = batches.batch(line["step"] - 1)
        loss, seconds = bare.step(line["step"] - 1, batch)
        took["bare"].append(seconds)
        if line["step"] <= 3 and abs(loss - line["loss"]) > 1e-4:
            raise TrainingError(
                f"step {line['step']}: the loop's loss is {line['loss']}, a bare step's {loss}; "
                f"nothing is timed until they agree"
            )
        left = time.perf_counter()

    train(config, out, show=False, on_step=compare)
    # The first steps warm caches, and the last one ends with a checkpoint.
    return row(
        "training loop",
        "training step",
        config.batch_tokens,
        took["loop"][2:-1],
        setting=f"Multiscreen psi = {config.model.depth}",
        against="bare steps",
        theirs=took["bare"][2:-1],
    )


def side_by_side(config: TrainConfig) -> Row:
    """Bare steps of the Multiscreen and of the Transformer nearest in size."""
    corpus = prepare(config.data, config.tokenizer)
    vocab = corpus.index.vocab_size

    def parameters(one: TrainConfig) -> int:
        return count(empty(model_config(one, vocab)))

    sizes = [replace(config, model=TransformerArch(depth=6, heads=4, width=width)) for width in range(16, 257, 8)]
    other = min(sizes, key=lambda one: abs(parameters(one) - parameters(config)))
    rivals = {"multiscreen": Bare(config, vocab), "transformer": Bare(other, vocab)}
    batches = Text(corpus).training(config)
    took: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(config.steps or 0):
        batch = batches.batch(number)
        for name, rival in rivals.items():
            took[name].append(rival.step(number, batch)[1])
    timed = row(
        f"Multiscreen psi = {config.model.depth}, {count(rivals['multiscreen'].model):,} parameters",
        "training step",
        config.batch_tokens,
        took["multiscreen"][1:],
        setting=f"T = {config.context}",
        against=f"Transformer, {count(rivals['transformer'].model):,} parameters",
        theirs=took["transformer"][1:],
    )
    return replace(timed, tokens_per_s=config.batch_tokens / timed.seconds.median)
