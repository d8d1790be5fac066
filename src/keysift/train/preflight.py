"""Checks and estimates before a run starts: FLOPs, memory, time, and a width that matches another model's size.

FLOPs count the model's own work: two per multiply-add of every matrix and, for the mechanism, of every visible
(query, key) pair. The backward pass costs twice the forward pass. Recomputation is not counted.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from keysift.core import memory
from keysift.core.errors import ConfigError, UnsupportedError
from keysift.core.number import data_size
from keysift.core.progress import ProgressDisplay
from keysift.models.architecture import Arch, MultiscreenArch, arch_name
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.losses import batch_loss
from keysift.models.matching import match_width, parameters_of
from keysift.models.presets import PRESETS
from keysift.models.registry import ModelConfig, build, build_meta
from keysift.models.save import load
from keysift.nn.scalars import MechanismScalars
from keysift.runs import checkpoint
from keysift.runs.directory import Run
from keysift.runs.layout import is_run_directory, newest_checkpoint, saved_step
from keysift.runs.machine import memory_bytes, peak_flops
from keysift.train.checkpoint import read_index
from keysift.train.config import TrainConfig, check_unfinished, resolve, resumed
from keysift.train.distributed import World, accumulation_steps, resolve_device
from keysift.train.init import find_origin, model_config
from keysift.train.manifest import check_same_text, read_manifest
from keysift.train.monitor import format_duration
from keysift.train.source import Stream, open_source

MAX_COUNTED = 10**13  # parameters; counting a larger model layer by layer takes too long
_MAX_TIMED = 2**28  # parameters; a larger model is not built only to time it


def flops_per_token(model: LanguageModel, context: int) -> float:
    """FLOPs of a training step per token: forward and backward, including the mechanism."""
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 2)
    if not getattr(model.config, "tied_embeddings", True):
        # Rows of the embedding are looked up, not multiplied; a second matrix computes the logits.
        matrices -= model.config.vocab_size * model.config.width
    visible = (context + 1) / 2
    pairs = 0.0
    for layer in model.layers:
        scalars = cast(MechanismScalars, layer.scalars)
        site, mechanism = scalars.site, scalars.mechanism
        pairs += site.heads * (mechanism.maps * site.key_width + site.value_width) * visible
    return 3 * 2 * (matrices + pairs)


def state_bytes(parameters: int, ema: bool) -> int:
    """Bytes of weights, gradients, the two moments of AdamW and the EMA, in fp32."""
    return parameters * 4 * (5 if ema else 4)


def min_parameters(model: Arch, vocab_size: int) -> int:
    """Lower bound on the number of parameters: the embedding and the matrices of every layer. Builds nothing."""
    if isinstance(model, MultiscreenArch):
        layer = model.tiles * model.width * 2 * (model.key_width + model.value_width)
    else:
        layer = model.width * (2 * model.heads * model.resolved_head_width + 3 * model.resolved_hidden_width)
    return model.width * vocab_size + model.depth * layer


def check_countable(config: TrainConfig, vocab_size: int, world: World) -> None:
    """Refuse a model too large to count its parameters, or a step whose token ids do not fit in memory."""
    tokens = config.batch_tokens / world.size
    memory.require(16 * tokens, f"a step of {config.batch_tokens:,} tokens", "lower --batch-tokens")
    parameters = min_parameters(config.model, vocab_size)
    if parameters > MAX_COUNTED:
        raise UnsupportedError(
            f"this model has at least {parameters:.1e} parameters, more than {MAX_COUNTED:.0e}; choose smaller sizes"
        )


def check_memory(config: TrainConfig, vocab_size: int, world: World) -> None:
    """Refuse a run whose step, training state or logits do not fit in the free memory of one process."""
    check_countable(config, vocab_size, world)
    sharded = world.size if config.strategy == "fsdp2" else 1
    state = state_bytes(min_parameters(config.model, vocab_size), bool(config.ema)) / sharded
    tokens = config.batch_tokens / world.size
    at_once = max(config.context, min(config.micro_tokens, tokens))
    _require(state, "the training state", "choose a smaller model, or fsdp2 on more GPUs", world)
    _require(8 * at_once * vocab_size, f"a pass over {at_once:,.0f} tokens", "lower --micro-tokens or --context", world)


def _require(size: float, what: str, remedy: str, world: World) -> None:
    if world.device.type != "cuda":
        memory.require(size, what, remedy)
        return
    free = torch.cuda.mem_get_info(world.device)[0]
    if size > free:
        raise UnsupportedError(
            f"{what} needs about {data_size(size)}, {data_size(free)} are free on {world.device}; {remedy}"
        )


def vocabulary(config: TrainConfig, *, show: bool) -> int:
    """Vocabulary size of the tokenizer of a run. Opens its data, which may tokenize it."""
    return open_source(config, World(0, 1, torch.device("cpu")), show=show).tokenizer.vocab_size


def memory_of_run(config: TrainConfig) -> int:
    """Bytes that a process needs to train with this config: for a scheduler. Opens its data, which may tokenize it."""
    vocab_size = vocabulary(config, show=False)
    check_countable(config, vocab_size, World(0, 1, torch.device("cpu")))
    return 2**29 + state_bytes(min_parameters(config.model, vocab_size), bool(config.ema))


def estimate(config: TrainConfig, *, resume: Path | None = None, show: bool = True) -> dict[str, str]:
    """Describe what training with this config would cost, from a few steps of the real model on this machine.

    For a run to resume, only the remaining steps count. Writes nothing but the tokenized corpus. `show` prints
    progress on stderr.
    """
    world = World(0, 1, resolve_device(config.device, 0))
    manifest = None if resume is None else read_manifest(Run(resume))
    done = 0
    if resume is not None and manifest is not None:
        config = resumed(manifest.config, config)
        done = _check_resumable(resume, config)
    source = open_source(config, world, show=show)
    origin = manifest.origin if manifest else find_origin(config, source.tokenizer)
    vocab_size = source.tokenizer.vocab_size if origin is None else origin.vocab_size
    check_countable(config, vocab_size, world)
    shape = model_config(config, vocab_size)
    model = build_meta(shape)
    parameters = count_parameters(model)
    config = config if resume else resolve(config, parameters)
    batches = source.training(config)
    if resume is not None and manifest is not None:
        check_same_text(Run(resume), manifest, batches.stream_hash)
    calls = accumulation_steps(config, world)
    flops = flops_per_token(model, config.context)
    rows = {
        "model": f"{config.arch}, {shape.depth} layers, width {shape.width}",
        "parameters": f"{parameters:,}",
        "data": f"{'endless' if batches.tokens is None else f'{batches.tokens:,}'} training tokens of "
        f"{source.tokenizer.name}",
        "step": f"{config.batch_tokens:,} tokens: {calls} x {config.sequences // calls} sequences of {config.context}",
        "recipe": f"lr {config.lr:g}, warm-up {config.warmup}, {config.schedule}, "
        f"decay {config.weight_decay:g}, clip {config.clip or 'none'}",
        "FLOPs per token": f"{flops:,.0f}, forward and backward, including the mechanism",
        "memory of weights and optimizer": f"{state_bytes(parameters, bool(config.ema)) / 2**20:,.1f} MiB",
    }
    if parameters > _MAX_TIMED:
        speed = peak_flops(world.device, torch.float32) / flops
        rows["speed"] = f"at most {speed:,.0f} tokens/s, from a matrix product: the model is too large to be timed here"
    else:
        check_memory(config, vocab_size, world)
        speed = _measure_speed(shape, batches, calls, world, show=show)
        rows["memory of the process"] = f"{memory_bytes(world.device) / 2**20:,.0f} MiB after one pass"
        rows["speed"] = f"{speed:,.0f} tokens/s, the best of three passes on one process here"
    return {**rows, **_cost_of_steps(config, done, batches.tokens, flops, speed)}


def _check_resumable(run: Path, config: TrainConfig) -> int:
    """Check that a run is unfinished and its newest checkpoint intact; returns the steps already made."""
    check_unfinished(run, config)
    newest = newest_checkpoint(run)
    if newest is not None:
        checkpoint.verify(newest)
        read_index(newest / checkpoint.STATE)
    return saved_step(run)


def _measure_speed(shape: ModelConfig, batches: Stream, calls: int, world: World, *, show: bool) -> float:
    """Tokens per second of a forward and backward pass, the best of three."""
    model = build(shape).to(world.device)
    batch = batches.batch(0, 0, calls).to(world.device)
    tokens = batch.inputs.numel()
    ProgressDisplay(show=show).print(f"timing three passes of {tokens:,} tokens, forward and backward")
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        batch_loss(model, batch).loss.backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - began)
    return tokens / min(seconds)


def _cost_of_steps(
    config: TrainConfig, done: int, corpus_tokens: int | None, flops: float, speed: float
) -> dict[str, str]:
    rows = {}
    if config.steps is not None:
        tokens = (config.steps - done) * config.batch_tokens
        rows["steps"] = f"{config.steps:,}" + (f", of which {done:,} are done" if done else "")
        rows["tokens"] = f"{tokens:,}"
        if corpus_tokens is not None:
            rows["tokens"] += f", {tokens / corpus_tokens:.2f} times the corpus"
        rows["FLOPs"] = f"{tokens * flops:.3g}"
        rows["time"] = f"about {format_duration(tokens / speed)} on one process like this"
    if config.minutes is not None:
        rows["in the time given"] = f"about {config.minutes * 60 * speed:,.0f} tokens in {config.minutes:g} minutes"
    return rows


def match_parameters(config: TrainConfig, other: str) -> tuple[TrainConfig, str]:
    """The config with the width that brings its parameter count nearest to `other`, and a sentence saying how near.

    `other` is a run, a saved model or a preset. Every other setting is kept. A preset is counted with the vocabulary
    of this run.
    """
    vocab_size = vocabulary(config, show=True)
    sizes = {"vocab_size": vocab_size, "context": config.context}
    if is_run_directory(Path(other)):
        target = read_manifest(Run(Path(other))).parameters
    elif other in PRESETS:
        target = parameters_of(PRESETS.find(other).arch, **sizes)
    elif Path(other).exists():
        target = count_parameters(load(other))
    else:
        raise ConfigError(f"--match takes a run, a saved model or a preset, got {other}; see keysift presets")
    arch = match_width(config.model, target, **sizes)
    parameters = parameters_of(arch, **sizes)
    message = (
        f"matched to {other}: {arch_name(arch)} of width {arch.width} has {parameters:,} parameters, "
        f"{other} has {target:,} ({parameters / target - 1:+.2%})"
    )
    return replace(config, model=arch), message
