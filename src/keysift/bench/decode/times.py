"""Benchmark of decoding: a Llama against transformers, and a Multiscreen with finite windows on a long text.

It uses one thread and measures the CPU time of the process. On the long text, do memory or time per token grow? Other
work on the machine still slows every step, so a control takes every tenth step: the same model on a text that stays
short. Growth is measured relative to the control.
"""

import time
from dataclasses import replace
from statistics import mean

import torch

from keysift.bench.collector import Collector, Log
from keysift.bench.decode.llama import Peer, Shape, measure_llama
from keysift.bench.model_cases import open_multiscreen
from keysift.bench.timing import row
from keysift.core.config import config
from keysift.models.language_model import LanguageModel
from keysift.records.bench import Result, at_most
from keysift.runs import machine
from keysift.verify.cache_equality import check_cache

WARM = 512  # tokens; after these every window is full
CONTROL_EVERY = 10
SHORT = 1_512  # tokens; then the control starts a new text


@config
class Sizes:
    """Length of the text and size of the model. Targets apply at FULL.tokens or more."""

    tokens: int = 100_000
    psi: int = 4
    llama: Shape = Shape()


FULL = Sizes()
QUICK = Sizes(tokens=2_000, llama=Shape(rounds=3))


class Decoder:
    """Greedy decoding, one token at a time, from a cache in which every window is full."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.reset()

    def reset(self) -> None:
        self.cache = self.model.cache(1)
        self.seen = WARM
        text = torch.zeros(1, WARM, dtype=torch.int64)
        self.token = self.model(text, cache=self.cache)[:, -1:].argmax(-1)

    def step(self) -> float:
        began = time.process_time()
        self.token = self.model(self.token, cache=self.cache).argmax(-1)
        seconds = time.process_time() - began
        self.seen += 1
        return seconds


def measure(sizes: Sizes, *, command: str, log: Log, peer: Peer | None = None) -> Result:
    """`peer` builds a Llama of another library, to be timed in turns with ours."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(sizes, command, log, peer)
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def _measure(sizes: Sizes, command: str, log: Log, peer: Peer | None) -> Result:
    model = open_multiscreen(sizes.psi)
    log("checking the cache against the full forward")
    check_cache(model, (300, 7, 1, 1, 1))
    results = Collector(machine.examine(), log)
    measure_llama(results, sizes.llama, peer)
    long, short = Decoder(model), Decoder(model)
    halves = []
    for half in ("first half", "second half"):
        log(f"{half} of {sizes.tokens:,} tokens")
        steps, control = _half(long, short, sizes.tokens // 2)
        timed = row(
            f"Multiscreen psi = {sizes.psi}, {half}", "decode", long.seen, steps, setting="CPU time, one thread"
        )
        results.rows.append(replace(timed, cache_bytes=long.cache.nbytes))
        results.rows.append(row(f"control, {half}", "decode", SHORT, control, setting="CPU time, one thread"))
        halves.append((mean(steps), mean(control), long.cache.nbytes))
    (steps_1, control_1, bytes_1), (steps_2, control_2, bytes_2) = halves
    full = sizes.tokens >= FULL.tokens
    growth = (steps_2 / steps_1) / (control_2 / control_1)
    name = f"{sizes.tokens:,} tokens decoded one at a time, second half over first"
    results.targets.append(at_most(f"{name}: time, against the control", growth, 1.1, full_size=full, unit="x"))
    results.targets.append(at_most(f"{name}: bytes of cache", bytes_2 / bytes_1, 1.0, full_size=full, unit="x"))
    return results.result("decode", command)


def _half(long: Decoder, short: Decoder, tokens: int) -> tuple[list[float], list[float]]:
    steps, control = [], []
    for token in range(tokens):
        steps.append(long.step())
        if token % CONTROL_EVERY == 0:
            if short.seen >= SHORT:
                short.reset()
            control.append(short.step())
    return steps, control
