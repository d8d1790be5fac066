"""Benchmark of packed documents: a training step on rows of several documents against rows of one document."""

from dataclasses import replace

from keysift.bench.collector import Collector, Log
from keysift.bench.model_cases import multiscreen
from keysift.bench.timing import interleave, median_ratio, row
from keysift.bench.training_step import random_tokens, step
from keysift.core.config import config
from keysift.kernels.cpu import library
from keysift.kernels.positions import Positions
from keysift.records.bench import Result, at_least
from keysift.runs import machine
from keysift.verify import agreement


@config
class Sizes:
    """The target applies at the sizes of FULL."""

    psi: int = 6
    tokens: int = 1024
    documents: int = 8
    batch: int = 4
    rounds: int = 9


FULL = Sizes()
QUICK = Sizes(tokens=512, batch=2, rounds=3)


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    results = Collector(machine.examine(), log)
    if library.unavailable() is None:
        log("checking the kernel against the definition")
        agreement.check_kernel()
    model, text = multiscreen(sizes.psi), random_tokens(sizes.batch, sizes.tokens + 1)
    each, longer = divmod(sizes.tokens, sizes.documents)
    packed = Positions.packed([[each + 1] * longer + [each] * (sizes.documents - longer)] * sizes.batch)
    log(f"{sizes.documents} documents per row of {sizes.tokens:,} tokens, against one")
    times = interleave({"packed": step(model, text, positions=packed), "whole": step(model, text)}, sizes.rounds)
    what = f"Multiscreen psi = {sizes.psi}, {sizes.documents} documents per row"
    timed = row(
        what,
        "training step",
        sizes.tokens,
        times["packed"],
        setting=f"batch {sizes.batch}",
        against="one document per row",
        theirs=times["whole"],
    )
    results.rows.append(replace(timed, tokens_per_s=sizes.batch * sizes.tokens / timed.seconds.median))
    full = replace(sizes, rounds=FULL.rounds) == FULL
    name = f"{what}, T = {sizes.tokens:,}: tokens/s of a training step over one document per row"
    value = median_ratio(times["whole"], times["packed"])
    results.targets.append(at_least(name, value, 0.9, full_size=full))
    return results.result("documents", command)
