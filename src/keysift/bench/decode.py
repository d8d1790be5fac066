"""Decoding with finite windows: does memory or time per token grow with the text?

One thread, and the process's own CPU time. Other work on the machine still slows every step, so a control runs beside
it: every tenth step, one step of the same model on a text that stays short. What a step costs beyond the control's is
what length costs.
"""

import time
from dataclasses import replace
from statistics import mean

import torch

from keysift.bench.gather import Gathered, Say
from keysift.bench.record import Result, at_most
from keysift.bench.subjects import open_multiscreen
from keysift.bench.timing import row
from keysift.core.config import config
from keysift.evaluate.cached import check_cache
from keysift.models.language import LanguageModel
from keysift.runs import machine

WARM = 512  # tokens until every window is full
CONTROL_EVERY = 10
SHORT = 1_512  # tokens; then the control's text starts anew


@config
class Sizes:
    """How much text, and the size of the model. Targets are met or missed at FULL.tokens or more."""

    tokens: int = 100_000
    psi: int = 4


FULL = Sizes()
QUICK = Sizes(tokens=2_000)


class Decoder:
    """Greedy decoding, one token at a time, from a cache whose windows are all full."""

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
        took = time.process_time() - began
        self.seen += 1
        return took


def measure(sizes: Sizes, *, command: str, say: Say) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(sizes, command, say)
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def _measure(sizes: Sizes, command: str, say: Say) -> Result:
    model = open_multiscreen(sizes.psi)
    say("checking the cache against the full forward")
    check_cache(model, (300, 7, 1, 1, 1))
    found = Gathered(machine.examine(), say)
    long, short = Decoder(model), Decoder(model)
    halves = []
    for half in ("first half", "second half"):
        say(f"{half} of {sizes.tokens:,} tokens")
        steps, control = _half(long, short, sizes.tokens // 2)
        timed = row(
            f"Multiscreen psi = {sizes.psi}, {half}", "decode", long.seen, steps, setting="CPU time, one thread"
        )
        found.rows.append(replace(timed, cache_bytes=long.cache.nbytes))
        found.rows.append(row(f"control, {half}", "decode", SHORT, control, setting="CPU time, one thread"))
        halves.append((mean(steps), mean(control), long.cache.nbytes))
    (steps_1, control_1, bytes_1), (steps_2, control_2, bytes_2) = halves
    full = sizes.tokens >= FULL.tokens
    growth = (steps_2 / steps_1) / (control_2 / control_1)
    said = f"{sizes.tokens:,} tokens decoded one at a time, second half over first"
    found.targets.append(at_most(f"{said}: time, against the control", growth, 1.1, full_size=full, unit="x"))
    found.targets.append(at_most(f"{said}: bytes of cache", bytes_2 / bytes_1, 1.0, full_size=full, unit="x"))
    return found.result("decode", command)


def _half(long: Decoder, short: Decoder, tokens: int) -> tuple[list[float], list[float]]:
    steps, control = [], []
    for token in range(tokens):
        steps.append(long.step())
        if token % CONTROL_EVERY == 0:
            if short.seen >= SHORT:
                short.reset()
            control.append(short.step())
    return steps, control
