"""The benchmark of the screening kernel: each of its targets, measured in one process, turn by turn."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from keysift.bench import memory, training_step
from keysift.bench.child import in_a_child
from keysift.bench.contestants import Dense, Screening, Softmax
from keysift.bench.gather import Gathered, Say
from keysift.bench.record import Result, Row, at_least, at_most
from keysift.bench.timing import Turns, exponent, interleave, median_ratio, row, spread
from keysift.core.config import config, from_dict, to_dict
from keysift.evaluate import agreement
from keysift.kernels import native
from keysift.runs import machine

Step = Literal["forward", "backward", "forward + backward"]
FORWARD: Step = "forward"
BACKWARD: Step = "backward"
BOTH: Step = "forward + backward"
VARIANTS = ("avx512", "avx2", "plain")


@config
class Sizes:
    """How long, how wide, how often. A target is met or missed only at the sizes of FULL."""

    dense_tokens: int = 4096
    dense_tiles: int = 16
    limit: float = 40.0
    """Seconds after which no more rounds of a comparison begin; a quarter of it for the smaller ones."""
    tokens: int = 16_384
    tiles: int = 8
    rounds: int = 7
    """Of everything, at most."""
    curve: tuple[int, ...] = (1024, 4096)
    growth: tuple[int, ...] = (16_384, 32_768, 65_536, 131_072)
    memory_tokens: int = 131_072
    memory_tiles: int = 16
    psi: int = 8
    train_tokens: int = 1024
    train_batch: int = 8
    compiled: bool = True


FULL = Sizes()
QUICK = Sizes(
    dense_tokens=1024,
    tokens=4096,
    rounds=3,
    curve=(1024,),
    growth=(4096, 8192, 16_384),
    memory_tokens=16_384,
    train_tokens=256,
    train_batch=2,
    compiled=False,
)


def measure(sizes: Sizes, *, command: str, say: Say) -> Result:
    """Everything, after the kernel has been found right."""
    say("checking the kernel against the definition, in value and five gradients")
    agreement.check_kernel()
    say("measuring what the machine can do")
    found = Gathered(machine.with_peaks(machine.examine()), say)
    slowest = max(against_dense(found, sizes), against_softmax(found, sizes))
    over_lengths(found, sizes)
    growth(found, sizes)
    extra_memory(found, sizes)
    backward_over_forward(found, sizes, max(slowest, variants(found, sizes)))
    training(found, sizes)
    return found.result("screening", command)


def full(sizes: Sizes, *names: str) -> bool:
    """Whether these sizes are those the targets are about."""
    return all(getattr(sizes, name) == getattr(FULL, name) for name in names)


def add(
    found: Gathered, case: Screening, step: Step, ours: Sequence[float], against: str = "", theirs: Sequence[float] = ()
) -> None:
    timed = row(case.what, step, case.tokens, ours, setting=case.setting, against=against, theirs=theirs)
    flops, read = found.machine.sgemm_gflops, found.machine.read_gb_per_s
    if step == FORWARD and flops and read:
        each = 1e9 * timed.seconds.median
        timed = replace(timed, sgemm_share=case.flops / each / flops, read_share=case.bytes / each / read)
    found.rows.append(timed)


def take_turns(turns: Turns, cases: Iterable[Screening], rounds: int, limit: float) -> dict[str, list[float]]:
    """Seconds of each; the forward passes that the cases go back through are not timed."""
    for case in cases:
        case.keep()
    return interleave(turns, rounds, limit=limit)


def against_dense(found: Gathered, sizes: Sizes) -> float:
    """Backward over forward."""
    case = Screening(tokens=sizes.dense_tokens, tiles=sizes.dense_tiles)
    dense = Dense(case)
    where = f"T = {case.tokens:,}, {case.tiles} tiles, {case.window}"
    turns: Turns = {
        "ours": case.forward,
        "theirs": dense.forward,
        "our back": case.backward,
        "our both": case.both,
        "their both": dense.both,
    }
    taken = found.cell(
        f"{where}, against the {dense.name}", lambda: take_turns(turns, [case], sizes.rounds, sizes.limit)
    )
    add(found, case, FORWARD, taken["ours"], dense.name, taken["theirs"])
    add(found, case, BOTH, taken["our both"], dense.name, taken["their both"])
    add(found, case, BACKWARD, taken["our back"])
    at_full = full(sizes, "dense_tokens", "dense_tiles")
    for step, ours, theirs, target in ((FORWARD, "ours", "theirs", 100.0), (BOTH, "our both", "their both", 40.0)):
        value = median_ratio(taken[theirs], taken[ours])
        found.targets.append(at_least(f"{where}: {step} against the {dense.name}", value, target, full_size=at_full))
    return median_ratio(taken["our back"], taken["ours"])


def against_softmax(found: Gathered, sizes: Sizes) -> float:
    """The largest backward over forward."""
    softmax = Softmax(tokens=sizes.tokens, heads=sizes.tiles)
    cases = {
        "narrow": Screening(tokens=sizes.tokens, tiles=sizes.tiles, window=math.inf, acceptance=0.5),
        "wide": Screening(tokens=sizes.tokens, tiles=sizes.tiles, window=math.inf, acceptance=0.999),
        "windows": Screening(tokens=sizes.tokens, tiles=sizes.tiles),
    }
    turns: Turns = {"softmax": softmax.forward, "softmax both": softmax.both}
    for name, case in cases.items():
        turns |= {name: case.forward, f"{name} back": case.backward, f"{name} both": case.both}
    taken = found.cell(
        f"T = {sizes.tokens:,}, {sizes.tiles} tiles, against {softmax.name}",
        lambda: take_turns(turns, cases.values(), sizes.rounds, sizes.limit),
    )
    for name, case in cases.items():
        add(found, case, FORWARD, taken[name], softmax.name, taken["softmax"])
        add(found, case, BOTH, taken[f"{name} both"], softmax.name, taken["softmax both"])
        add(found, case, BACKWARD, taken[f"{name} back"])
    at_full = full(sizes, "tokens", "tiles")
    for name, step, target in (
        ("narrow", FORWARD, 3.0),
        ("wide", FORWARD, 1.6),
        ("narrow", BOTH, 2.0),
        ("windows", FORWARD, 60.0),
    ):
        case, suffix = cases[name], "" if step == FORWARD else " both"
        value = median_ratio(taken[f"softmax{suffix}"], taken[f"{name}{suffix}"])
        where = f"T = {case.tokens:,}, {case.tiles} tiles, {case.window}, r = {case.acceptance:g}"
        said = f"{where}: {step} against SDPA of {sizes.tiles} heads"
        found.targets.append(at_least(said, value, target, full_size=at_full))
    return max(median_ratio(taken[f"{name} back"], taken[name]) for name in cases)


def over_lengths(found: Gathered, sizes: Sizes) -> None:
    """Rows for the plot: everybody at lengths the dense definition can bear."""
    for tokens in sizes.curve:
        softmax = Softmax(tokens=tokens, heads=sizes.tiles)
        endless = Screening(tokens=tokens, tiles=sizes.tiles, window=math.inf)
        windows = Screening(tokens=tokens, tiles=sizes.tiles)
        dense = Dense(windows)
        turns: Turns = {
            "softmax": softmax.forward,
            "dense": dense.forward,
            "endless": endless.forward,
            "windows": windows.forward,
        }
        taken = found.cell(
            f"T = {tokens:,}, {sizes.tiles} tiles, everybody",
            partial(interleave, turns, sizes.rounds, limit=sizes.limit / 4),
        )
        add(found, endless, FORWARD, taken["endless"], softmax.name, taken["softmax"])
        add(found, windows, FORWARD, taken["windows"], dense.name, taken["dense"])


def growth(found: Gathered, sizes: Sizes) -> None:
    cases = [Screening(tokens=tokens, tiles=sizes.tiles) for tokens in sizes.growth]
    lengths = f"T = {sizes.growth[0]:,} to {sizes.growth[-1]:,}"
    turns: Turns = {}
    for case in cases:
        turns |= {f"{case.tokens}": case.forward, f"{case.tokens} both": case.both}
    taken = found.cell(f"growth from {lengths}", lambda: interleave(turns, sizes.rounds, limit=sizes.limit / 4))
    slopes = []
    for step, suffix in ((FORWARD, ""), (BOTH, " both")):
        for case in cases:
            add(found, case, step, taken[f"{case.tokens}{suffix}"])
        times = [spread(taken[f"{case.tokens}{suffix}"]).median for case in cases]
        slopes.append(exponent(sizes.growth, times))
    found.targets.append(
        at_most(
            f"{lengths}, {sizes.tiles} tiles, {cases[0].window}: growth exponent, the larger of {FORWARD} and {BOTH}",
            max(slopes),
            1.05,
            full_size=full(sizes, "growth", "tiles"),
        )
    )


def backward_over_forward(found: Gathered, sizes: Sizes, largest: float) -> None:
    found.targets.append(
        at_most(
            "backward over forward, the largest of all settings and variants timed",
            largest,
            2.5,
            full_size=full(sizes, "tokens", "tiles", "dense_tokens", "dense_tiles"),
            unit="x",
        )
    )


def extra_memory(found: Gathered, sizes: Sizes) -> None:
    if not memory.measurable():
        found.notes.append("extra memory: not measured, this system does not report it in /proc")
        return
    megabytes = found.cell(
        f"memory at T = {sizes.memory_tokens:,}, in a process of its own",
        lambda: in_a_child(kernel_mb, sizes.memory_tokens, sizes.memory_tiles),
    )
    found.targets.append(
        at_most(
            f"T = {sizes.memory_tokens:,}, {sizes.memory_tiles} tiles, windows as initialised: memory beyond "
            f"inputs and outputs, the larger of {FORWARD} and {BACKWARD}",
            max(megabytes.values()),
            64.0,
            full_size=full(sizes, "memory_tokens", "memory_tiles"),
            unit="MB",
        )
    )


def kernel_mb(tokens: int, tiles: int) -> dict[str, float]:
    """Of the forward pass that keeps what its gradient needs, and of the backward pass; windows as initialised."""
    # Threads, operators and code are paid for once, on a small call.
    small = Screening(tokens=64, tiles=tiles)
    small.keep()
    small.backward()
    case = Screening(tokens=tokens, tiles=tiles)
    q, k, v, *_ = case.leaves
    forward = memory.peak_mb(case.keep, outputs=4 * v.numel())
    gradients = 4 * (q.numel() + k.numel() + v.numel())
    return {"forward": forward, "backward": memory.peak_mb(case.backward, outputs=gradients)}


def variants(found: Gathered, sizes: Sizes) -> float:
    """Every variant of the kernel that this machine can run, each in a process of its own; the largest backward over
    forward."""
    here, largest = native.instruction_sets(), 0.0
    for name in VARIANTS:
        if name not in here:
            found.notes.append(f"variant {name}: not measured, this machine cannot run it")
            continue
        rows = found.cell(
            f"T = {sizes.tokens:,}, {sizes.tiles} tiles, variant {name}",
            partial(
                in_a_child,
                variant_rows,
                *(sizes.tokens, sizes.tiles, sizes.rounds, sizes.limit / 4),
                environment={"KEYSIFT_ISA": name},
            ),
        )
        timed = [from_dict(Row, one) for one in rows]
        found.rows.extend(timed)
        took = {(one.step, one.what): one.seconds.median for one in timed}
        largest = max(largest, *(took[BACKWARD, one.what] / took[FORWARD, one.what] for one in timed))
    return largest


def variant_rows(tokens: int, tiles: int, rounds: int, limit: float) -> list[dict[str, Any]]:
    """Rows of the variant that KEYSIFT_ISA names."""
    agreement.check_kernel()
    softmax = Softmax(tokens=tokens, heads=tiles)
    rows = []
    for window in (None, math.inf):
        case = Screening(tokens=tokens, tiles=tiles, window=window)
        setting = f"{case.setting}, {native.instruction_set()}"
        turns: Turns = {
            "ours": case.forward,
            "softmax": softmax.forward,
            "ours back": case.backward,
            "ours both": case.both,
            "softmax both": softmax.both,
        }
        taken = take_turns(turns, [case], rounds, limit)
        for step, suffix in ((FORWARD, ""), (BOTH, " both")):
            ours, theirs = taken[f"ours{suffix}"], taken[f"softmax{suffix}"]
            rows.append(row(case.what, step, tokens, ours, setting=setting, against=softmax.name, theirs=theirs))
        rows.append(row(case.what, BACKWARD, tokens, taken["ours back"], setting=setting))
    return [to_dict(timed) for timed in rows]


def training(found: Gathered, sizes: Sizes) -> None:
    where = f"Multiscreen psi = {sizes.psi}, T = {sizes.train_tokens:,}, batch {sizes.train_batch}"
    taken = found.cell(
        f"{where}: a training step",
        lambda: training_step.time_steps(
            psi=sizes.psi, batch=sizes.train_batch, tokens=sizes.train_tokens, rounds=1, compiled=sizes.compiled
        ),
    )
    at_full = full(sizes, "psi", "train_tokens", "train_batch")
    for path, target in (("dense, compiled", 4.0), ("dense, eager", 15.0)):
        if path not in taken:
            found.notes.append(f"training step: {path} was left out, compiling takes longer than a quick run")
            continue
        value = median_ratio(taken[path], taken["kernel"])
        found.targets.append(
            at_least(f"{where}: tokens/s of a training step against {path}", value, target, full_size=at_full)
        )
        timed = row(
            f"Multiscreen psi = {sizes.psi}",
            "training step",
            sizes.train_tokens,
            taken["kernel"],
            setting=f"batch {sizes.train_batch}",
            against=path,
            theirs=taken[path],
        )
        at_once = training_step.SEQUENCES_AT_ONCE
        found.rows.append(replace(timed, note=f"dense: {at_once} sequences at a time, gradients summed"))
