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
from keysift.bench.contestants import build_cases, without_compiler
from keysift.bench.operators import operator_shares
from keysift.bench.timing import Turns, interleave, median_ratio, row, seconds
from keysift.bench.training_step import random_tokens, step
from keysift.core.config import config as frozen
from keysift.core.errors import TrainingError
from keysift.data.batches import Batch
from keysift.data.shards import prepare
from keysift.kernels.cpu.linear import linear
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.losses import batch_loss, count_targets
from keysift.models.matching import match_width, parameters_of
from keysift.models.registry import build
from keysift.records.bench import Result, Row, at_least
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
    lengths: tuple[int, ...] = (1024, 256)
    """Sequence lengths of the steps that are compared with Transformers and with the SGEMM peak."""
    step_tokens: int = 8192
    """Tokens of these steps."""
    rounds: int = 9


FULL = Sizes()
QUICK = Sizes(psi=4, steps=8, lengths=(64,), step_tokens=128, rounds=2)
# Speedup over the Transformer by length: eager and, where there is a target, compiled.
TARGETS = {1024: {"transformer": 1.4, "compiled": 1.1}, 256: {"transformer": 1.1}}
SGEMM_TARGET = 0.42  # share of the peak at the first length, counting 6 operations per parameter and token


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    results = Collector(machine.with_peaks(machine.examine()), log)
    config = train_config(sizes)
    with tempfile.TemporaryDirectory() as folder:
        log("the training loop against bare steps")
        results.rows.append(overhead(config, Path(folder) / "run"))
    rate = results.measure_once("product of oneDNN", onednn_gflops)
    results.notes.append(
        f"the SGEMM peak is that of torch's product of large matrices, {results.machine.sgemm_gflops} GFLOP/s; "
        f"projections run through oneDNN, which multiplies the same matrices at {rate:.0f} GFLOP/s"
    )
    log("Multiscreen against the Transformer nearest in size")
    results.rows.append(side_by_side(config))
    for length in sizes.lengths:
        compare_steps(results, sizes, length)
    return results.result("train", command)


def onednn_gflops() -> float:
    """Best rate of the product that projections use, for the matrices of the SGEMM peak."""
    x = torch.ones(machine.PRODUCT_SIZE, machine.PRODUCT_SIZE)
    return 2e-9 * machine.PRODUCT_SIZE**3 / min(seconds(lambda: linear(x, x)) for _ in range(machine.ROUNDS))


def compare_steps(results: Collector, sizes: Sizes, length: int) -> None:
    """Time a step of the Multiscreen against the Transformer of its size, as it is and under torch.compile."""
    cases = without_compiler(results, build_cases(sizes.psi))
    cases = {key: cases[key] for key in ("plain", "transformer", "compiled", "windowed") if key in cases}
    batch = max(1, sizes.step_tokens // length)
    text = random_tokens(batch, length + 1)
    name = f"training step, T = {length:,}, batch {batch}"

    def measure_steps() -> dict[str, list[float]]:
        turns: Turns = {key: step(case.model, text, compiled=case.compiled) for key, case in cases.items()}
        if "compiled" in turns:
            turns["compiled"]()  # compile now, so that no round includes it
        return interleave(turns, sizes.rounds)

    times = results.measure_once(name, measure_steps)
    if length == sizes.lengths[0]:
        plain = step(cases["plain"].model, text)
        shares = results.measure_once(f"{name}, by operator", lambda: operator_shares(plain))
        listed = ", ".join(f"{operator} {share:.1%}" for operator, share in shares.items())
        results.notes.append(f"{name}, {cases['plain'].name}, time by operator: {listed}")
    full = (sizes.psi, sizes.step_tokens) == (FULL.psi, FULL.step_tokens)
    assert results.machine.sgemm_gflops is not None, "with_peaks measures it"
    peak = results.machine.sgemm_gflops * 1e9
    for key, case in cases.items():
        rival = {} if key == "plain" else {"against": cases["plain"].name, "theirs": times["plain"]}
        timed = row(case.name, "training step", length, times[key], setting=f"batch {batch}", **rival)
        share = 6 * count_parameters(case.model) * batch * length / timed.seconds.median / peak
        speed = batch * length / timed.seconds.median
        results.rows.append(replace(timed, sgemm_share=share, tokens_per_s=speed))
        if key == "plain" and length == sizes.lengths[0]:
            what = f"psi = {sizes.psi}, {name}: share of the SGEMM peak, 6 operations per parameter and token"
            results.targets.append(at_least(what, share, SGEMM_TARGET, full_size=full, unit=""))
        if key in TARGETS.get(length, {}):
            what = f"psi = {sizes.psi}, {name}: Multiscreen, against the {case.name}"
            value = median_ratio(times[key], times["plain"])
            results.targets.append(at_least(what, value, TARGETS[length][key], full_size=full))


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
