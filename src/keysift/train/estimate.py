"""What a run would cost, from a few steps of its real model on this machine; nothing is written but the corpus."""

import time
from pathlib import Path

import torch

from keysift.core.live import Live
from keysift.evaluate.validation import summed_loss
from keysift.models.kinds import build, empty
from keysift.models.language import count
from keysift.runs import checkpoint
from keysift.runs.directory import Run
from keysift.runs.layout import newest, saved
from keysift.runs.machine import memory_bytes, peak_flops
from keysift.train.config import TrainConfig, changed, refuse_finished, resolve
from keysift.train.costs import flops_per_token, state_bytes
from keysift.train.distributed import World, find_device
from keysift.train.facts import read_facts, refuse_other_text
from keysift.train.init import find_origin
from keysift.train.limits import refuse_endless, refuse_too_large
from keysift.train.progress import clock
from keysift.train.setup import accumulation_steps, model_config
from keysift.train.shards import read_index
from keysift.train.source import open_source

_LARGEST = 2**28  # parameters; a larger model is not built only to time it


def estimate(config: TrainConfig, *, resume: Path | None = None, show: bool = True) -> dict[str, str]:
    """What training with this config would be; of a run to be resumed, what is left of it. `show` says on stderr what
    takes long."""
    world = World(0, 1, find_device(config.device, 0))
    stored = None if resume is None else read_facts(Run(resume))
    made = 0
    if resume is not None and stored is not None:
        config = changed(stored.config, config)
        refuse_finished(resume, config)
        made = saved(resume)
        known = newest(resume)
        if known is not None:
            checkpoint.verify(known)
            read_index(known / checkpoint.STATE)
    source = open_source(config, world, show=show)
    origin = stored.origin if stored else find_origin(config, source.tokenizer)
    vocab_size = source.tokenizer.vocab_size if origin is None else origin.vocab_size
    refuse_endless(config, vocab_size, world)
    shape = model_config(config, vocab_size)
    model = empty(shape)
    parameters = count(model)
    config = config if resume else resolve(config, parameters)
    batches = source.training(config)
    if resume is not None and stored is not None:
        refuse_other_text(Run(resume), stored, batches.stream_hash)
    often = accumulation_steps(config, world)
    flops = flops_per_token(model, config.context)
    told = {
        "model": f"{config.arch}, {shape.depth} layers, width {shape.width}",
        "parameters": f"{parameters:,}",
        "data": f"{'endless' if batches.tokens is None else f'{batches.tokens:,}'} training tokens of "
        f"{source.tokenizer.name}",
        "step": f"{config.batch_tokens:,} tokens: {often} x {config.sequences // often} sequences of {config.context}",
        "recipe": f"lr {config.lr:g}, warm-up {config.warmup}, {config.schedule}, "
        f"decay {config.weight_decay:g}, clip {config.clip or 'none'}",
        "FLOPs a token": f"{flops:,.0f}, forward and backward, the mechanism's own work included",
        "memory of weights and optimizer": f"{state_bytes(parameters, bool(config.ema)) / 2**20:,.1f} MiB",
    }
    if parameters > _LARGEST:
        peak = peak_flops(world.device, torch.float32)
        told["speed"] = f"at best {peak / flops:,.0f} tokens/s: too large to be timed here, from a matrix product"
        speed = peak / flops
    else:
        refuse_too_large(config, vocab_size, world)
        model = build(shape).to(world.device)
        batch = batches.batch(0, 0, often).to(world.device)
        Live(show=show).say(f"timing three passes of {batch.inputs.numel():,} tokens, forward and backward")
        took = []
        for _ in range(3):
            began = time.perf_counter()
            summed_loss(model, batch).backward()  # type: ignore[no-untyped-call]
            took.append(time.perf_counter() - began)
        speed = batch.inputs.numel() / min(took)
        told["memory of the process"] = f"{memory_bytes(world.device) / 2**20:,.0f} MiB after one pass"
        told["speed"] = f"{speed:,.0f} tokens/s, the best of three passes on one process here"
    if config.steps is not None:
        tokens = (config.steps - made) * config.batch_tokens
        told["steps"] = f"{config.steps:,}" + (f", of which {made:,} are made" if made else "")
        told["tokens"] = f"{tokens:,}"
        if batches.tokens is not None:
            told["tokens"] += f", {tokens / batches.tokens:.2f} times the corpus"
        told["FLOPs"] = f"{tokens * flops:.3g}"
        told["time"] = f"about {clock(tokens / speed)} on one process like this"
    if config.minutes is not None:
        told["in the time given"] = f"about {config.minutes * 60 * speed:,.0f} tokens in {config.minutes:g} minutes"
    return told
