"""Benchmark of training: overhead of the training loop over bare steps, and Multiscreen against a Transformer.

The two sides take turns in one process, and ratios are taken step by step. The loop is timed only after its losses
agree with those of the bare steps.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from keysift.bench.collector import Collector, Log
from keysift.bench.timing import row
from keysift.core.config import config as frozen
from keysift.core.errors import TrainingError
from keysift.data.batches import Batch
from keysift.data.shards import prepare
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.losses import batch_loss, count_targets
from keysift.models.matching import match_width, parameters_of
from keysift.models.registry import build
from keysift.records.bench import Result, Row
from keysift.runs import machine
from keysift.train.config import TrainConfig, resolve
from keysift.train.init import model_config
from keysift.train.loop import train
from keysift.train.optimizer import adamw, set_lr
from keysift.train.schedule import lr_multiplier
from keysift.train.source import TextSource


@frozen
class Sizes:
    psi: int = 8
    context: int = 512
    batch_tokens: int = 2048
    steps: int = 20
    """Steps of each kind, not counting warmup."""
    data: str = "stdlib"


FULL = Sizes()
QUICK = Sizes(psi=4, steps=8)


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    results = Collector(machine.examine(), log)
    config = train_config(sizes)
    with tempfile.TemporaryDirectory() as folder:
        log("the training loop against bare steps")
        results.rows.append(overhead(config, Path(folder) / "run"))
    log("Multiscreen against the Transformer nearest in size")
    results.rows.append(side_by_side(config))
    return results.result("train", command)


def train_config(sizes: Sizes) -> TrainConfig:
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


class BareStep:
    """A minimal training step: forward, backward and optimizer step."""

    def __init__(self, config: TrainConfig, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(config.seed)
        self.model: LanguageModel = build(model_config(config, vocab_size), generator)
        self.config = resolve(config, count_parameters(self.model))
        self.optimizer = adamw(dict(self.model.named_parameters()), self.config)

    def step(self, number: int, batch: Batch) -> tuple[float, float]:
        """Return loss and seconds. The batch is already in memory."""
        began = time.perf_counter()
        set_lr(self.optimizer, (self.config.lr or 0.0) * lr_multiplier(self.config, number))
        self.optimizer.zero_grad(set_to_none=True)
        loss = batch_loss(self.model, batch).loss / count_targets(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss.detach()), time.perf_counter() - began


def overhead(config: TrainConfig, out: Path) -> Row:
    """Time the steps of the loop against bare steps on the same batches, in turns."""
    corpus = prepare(config.data, config.tokenizer)
    bare = BareStep(config, corpus.index.vocab_size)
    batches = TextSource(corpus).training(config)
    times: dict[str, list[float]] = {"loop": [], "bare": []}
    resumed = time.perf_counter()

    def compare(line: dict[str, Any]) -> None:
        nonlocal resumed
        times["loop"].append(time.perf_counter() - resumed)
        batch = batches.batch(line["step"] - 1)
        loss, seconds = bare.step(line["step"] - 1, batch)
        times["bare"].append(seconds)
        if line["step"] <= 3 and abs(loss - line["loss"]) > 1e-4:
            raise TrainingError(
                f"step {line['step']}: the loop's loss is {line['loss']}, a bare step's {loss}; "
                f"nothing is timed until they agree"
            )
        resumed = time.perf_counter()

    train(config, out, show=False, on_step=compare)
    # The first steps are warmup, and the last one saves a checkpoint.
    return row(
        "training loop",
        "training step",
        config.batch_tokens,
        times["loop"][2:-1],
        setting=f"Multiscreen psi = {config.model.depth}",
        against="bare steps",
        theirs=times["bare"][2:-1],
    )


def side_by_side(config: TrainConfig) -> Row:
    """Time bare steps of the Multiscreen against those of a Transformer of the same size."""
    corpus = prepare(config.data, config.tokenizer)
    vocab = corpus.index.vocab_size
    sizes = {"vocab_size": vocab, "context": config.context}
    parameters = parameters_of(config.model, **sizes)
    transformer = match_width(TransformerArch(depth=6, heads=4, width=8), parameters, **sizes)
    other = replace(config, model=transformer)
    rivals = {"multiscreen": BareStep(config, vocab), "transformer": BareStep(other, vocab)}
    batches = TextSource(corpus).training(config)
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(config.steps or 0):
        batch = batches.batch(number)
        for name, rival in rivals.items():
            times[name].append(rival.step(number, batch)[1])
    timed = row(
        f"Multiscreen psi = {config.model.depth}, {count_parameters(rivals['multiscreen'].model):,} parameters",
        "training step",
        config.batch_tokens,
        times["multiscreen"][1:],
        setting=f"T = {config.context}",
        against=f"Transformer, {count_parameters(rivals['transformer'].model):,} parameters",
        theirs=times["transformer"][1:],
    )
    return replace(timed, tokens_per_s=config.batch_tokens / timed.seconds.median)
