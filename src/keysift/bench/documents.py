"""Packed documents: what a training step costs when each row holds several documents that do not see each other."""

from dataclasses import replace

from keysift.bench.gather import Gathered, Say
from keysift.bench.record import Result, at_least
from keysift.bench.subjects import multiscreen
from keysift.bench.timing import interleave, median_ratio, row
from keysift.bench.training_step import some_text, step
from keysift.core.config import config
from keysift.evaluate import agreement
from keysift.kernels import native
from keysift.kernels.positions import Positions
from keysift.runs import machine


@config
class Sizes:
    """The target is met or missed at the sizes of FULL."""

    psi: int = 6
    tokens: int = 1024
    documents: int = 8
    batch: int = 4
    rounds: int = 9


FULL = Sizes()
QUICK = Sizes(tokens=512, batch=2, rounds=3)


def measure(sizes: Sizes, *, command: str, say: Say) -> Result:
    found = Gathered(machine.examine(), say)
    if native.unusable() is None:
        say("checking the kernel against the definition")
        agreement.check_kernel()
    model, text = multiscreen(sizes.psi), some_text(sizes.batch, sizes.tokens + 1)
    each, longer = divmod(sizes.tokens, sizes.documents)
    packed = Positions.packed([[each + 1] * longer + [each] * (sizes.documents - longer)] * sizes.batch)
    say(f"{sizes.documents} documents a row of {sizes.tokens:,} tokens, against one")
    taken = interleave({"packed": step(model, text, positions=packed), "whole": step(model, text)}, sizes.rounds)
    what = f"Multiscreen psi = {sizes.psi}, {sizes.documents} documents a row"
    timed = row(
        what,
        "training step",
        sizes.tokens,
        taken["packed"],
        setting=f"batch {sizes.batch}",
        against="one document a row",
        theirs=taken["whole"],
    )
    found.rows.append(replace(timed, tokens_per_s=sizes.batch * sizes.tokens / timed.seconds.median))
    full = replace(sizes, rounds=FULL.rounds) == FULL
    said = f"{what}, T = {sizes.tokens:,}: tokens/s of a training step over one document a row"
    value = median_ratio(taken["whole"], taken["packed"])
    found.targets.append(at_least(said, value, 0.9, full_size=full))
    return found.result("documents", command)
