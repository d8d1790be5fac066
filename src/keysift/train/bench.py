"""What the loop costs beside a bare step, and Multiscreen beside a Transformer of the same size.

Each pair is timed in turn in one process, so that what else the machine does falls on both; the figures that count are
ratios of medians. The loop is timed only after its losses were found equal to those of the bare steps.
"""

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from keysift.core.errors import TrainingError
from keysift.data.batches import Batch
from keysift.data.shards import prepare
from keysift.evaluate.validation import summed_loss, targets
from keysift.models.language import LanguageModel, count
from keysift.train.build import build, empty, model_config
from keysift.train.config import TrainConfig, resolve
from keysift.train.loop import train
from keysift.train.optimizer import adamw, set_rate
from keysift.train.schedule import share
from keysift.train.setup import streams


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
        set_rate(self.optimizer, (self.config.rate or 0.0) * share(self.config, number))
        self.optimizer.zero_grad(set_to_none=True)
        loss = summed_loss(self.model, batch) / targets(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach()), time.perf_counter() - began


def overhead(config: TrainConfig, out: Path) -> dict[str, Any]:
    """The time of the loop's steps over the time of bare steps on the same batches, taken in turn."""
    corpus = prepare(config.data, config.tokenizer)
    bare = Bare(config, corpus.index.vocab_size)
    batches, _ = streams(corpus, config)
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
    medians = {name: statistics.median(times[2:-1]) for name, times in took.items()}
    return {
        "loop_seconds_a_step": medians["loop"],
        "bare_seconds_a_step": medians["bare"],
        "overhead": medians["loop"] / medians["bare"] - 1,
        "steps": len(took["bare"]) - 3,
    }


def side_by_side(config: TrainConfig, steps: int) -> dict[str, Any]:
    """Tokens a second of bare steps, Multiscreen and the Transformer nearest in size."""
    corpus = prepare(config.data, config.tokenizer)
    vocab = corpus.index.vocab_size
    size = count(empty(model_config(config, vocab)))
    sizes = {
        width: replace(config, arch="transformer", psi=None, depth=6, heads=4, width=width)
        for width in range(16, 257, 8)
    }
    other = min(sizes.values(), key=lambda c: abs(count(empty(model_config(c, vocab))) - size))
    rivals = {"multiscreen": Bare(config, vocab), "transformer": Bare(other, vocab)}
    batches, _ = streams(corpus, config)
    took: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(steps):
        batch = batches.batch(number)
        for name, rival in rivals.items():
            took[name].append(rival.step(number, batch)[1])
    speeds = {name: config.batch_tokens / statistics.median(times[1:]) for name, times in took.items()}
    return {
        "parameters": {name: count(rival.model) for name, rival in rivals.items()},
        "tokens_per_second": speeds,
        "multiscreen_over_transformer": speeds["multiscreen"] / speeds["transformer"],
    }
