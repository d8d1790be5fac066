"""Benchmark of the screening kernel against the dense definition and softmax attention, in turns in one process."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from keysift.bench import peak_memory as memory
from keysift.bench import screening_device, training_step
from keysift.bench.attention_cases import DenseCase, ScreeningCase, SoftmaxCase
from keysift.bench.collector import Collector, Log
from keysift.bench.subprocess_call import run_in_subprocess
from keysift.bench.timing import Turns, interleave, median_ratio, quartiles, row
from keysift.core.config import config, from_dict, to_dict
from keysift.core.statistics import power_law_exponent
from keysift.kernels.cpu import library
from keysift.records.bench import Result, Row, at_least, at_most
from keysift.runs import machine
from keysift.train.distributed import resolve_device
from keysift.verify import agreement

Step = Literal["forward", "backward", "forward + backward"]
FORWARD: Step = "forward"
BACKWARD: Step = "backward"
BOTH: Step = "forward + backward"
VARIANTS = ("avx512", "avx2", "plain")


@config
class Sizes:
    """Lengths, tiles and rounds. Targets apply at the sizes of FULL."""

    dense_tokens: int = 4096
    dense_tiles: int = 16
    limit: float = 40.0
    """Seconds after which no more rounds of a comparison begin; the smaller comparisons have a quarter of it."""
    tokens: int = 16_384
    tiles: int = 8
    rounds: int = 7
    """Maximum for every comparison."""
    curve: tuple[int, ...] = (1024, 4096)
    growth: tuple[int, ...] = (16_384, 32_768, 65_536, 131_072)
    memory_tokens: int = 131_072
    memory_tiles: int = 16
    psi: int = 8
    train_tokens: int = 1024
    train_batch: int = 8
    compiled: bool = True
    device: str = "cpu"
    """Another device is compared with torch's attention on the same device, at the lengths of `device_tokens`."""
    device_tokens: tuple[int, ...] = (1024, 4096, 16_384, 65_536, 131_072)


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
    device_tokens=(1024, 4096),
)


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    """Run every comparison, after checking the kernel against the definition."""
    if sizes.device != "cpu":
        device, limit = resolve_device(sizes.device, 0), sizes.limit / 4
        return screening_device.measure(device, sizes.device_tokens, sizes.rounds, limit, command=command, log=log)
    log("checking the kernel against the definition, in value and five gradients")
    agreement.check_kernel()
    log("measuring the peaks of the machine")
    results = Collector(machine.with_peaks(machine.examine()), log)
    slowest = max(against_dense(results, sizes), against_softmax(results, sizes))
    over_lengths(results, sizes)
    growth(results, sizes)
    extra_memory(results, sizes)
    backward_over_forward(results, sizes, max(slowest, variants(results, sizes)))
    training(results, sizes)
    return results.result("screening", command)


def full(sizes: Sizes, *names: str) -> bool:
    """Whether these sizes are those of the targets."""
    return all(getattr(sizes, name) == getattr(FULL, name) for name in names)


def add(
    results: Collector,
    case: ScreeningCase,
    step: Step,
    ours: Sequence[float],
    against: str = "",
    theirs: Sequence[float] = (),
) -> None:
    timed = row(case.what, step, case.tokens, ours, setting=case.setting, against=against, theirs=theirs)
    flops, read = results.machine.sgemm_gflops, results.machine.read_gb_per_s
    if step == FORWARD and flops and read:
        each = 1e9 * timed.seconds.median
        timed = replace(timed, sgemm_share=case.flops / each / flops, read_share=case.bytes / each / read)
    results.rows.append(timed)


def take_turns(turns: Turns, cases: Iterable[ScreeningCase], rounds: int, limit: float) -> dict[str, list[float]]:
    """Seconds of each. The forward passes that `backward` differentiates are not timed."""
    for case in cases:
        case.record_forward()
    return interleave(turns, rounds, limit=limit)


def against_dense(results: Collector, sizes: Sizes) -> float:
    """Add rows and targets. Returns the time of backward over forward."""
    case = ScreeningCase(tokens=sizes.dense_tokens, tiles=sizes.dense_tiles)
    dense = DenseCase(case)
    where = f"T = {case.tokens:,}, {case.tiles} tiles, {case.window}"
    turns: Turns = {
        "ours": case.forward,
        "theirs": dense.forward,
        "our back": case.backward,
        "our both": case.forward_backward,
        "their both": dense.forward_backward,
    }
    times = results.measure_once(
        f"{where}, against the {dense.name}", lambda: take_turns(turns, [case], sizes.rounds, sizes.limit)
    )
    add(results, case, FORWARD, times["ours"], dense.name, times["theirs"])
    add(results, case, BOTH, times["our both"], dense.name, times["their both"])
    add(results, case, BACKWARD, times["our back"])
    at_full = full(sizes, "dense_tokens", "dense_tiles")
    for step, ours, theirs, target in ((FORWARD, "ours", "theirs", 100.0), (BOTH, "our both", "their both", 40.0)):
        value = median_ratio(times[theirs], times[ours])
        results.targets.append(at_least(f"{where}: {step} against the {dense.name}", value, target, full_size=at_full))
    return median_ratio(times["our back"], times["ours"])


def against_softmax(results: Collector, sizes: Sizes) -> float:
    """Add rows and targets. Returns the largest time of backward over forward."""
    softmax = SoftmaxCase(tokens=sizes.tokens, heads=sizes.tiles)
    cases = {
        "narrow": ScreeningCase(tokens=sizes.tokens, tiles=sizes.tiles, window=math.inf, acceptance=0.5),
        "wide": ScreeningCase(tokens=sizes.tokens, tiles=sizes.tiles, window=math.inf, acceptance=0.999),
        "windows": ScreeningCase(tokens=sizes.tokens, tiles=sizes.tiles),
    }
    turns: Turns = {"softmax": softmax.forward, "softmax both": softmax.forward_backward}
    for name, case in cases.items():
        turns |= {name: case.forward, f"{name} back": case.backward, f"{name} both": case.forward_backward}
    times = results.measure_once(
        f"T = {sizes.tokens:,}, {sizes.tiles} tiles, against {softmax.name}",
        lambda: take_turns(turns, cases.values(), sizes.rounds, sizes.limit),
    )
    for name, case in cases.items():
        add(results, case, FORWARD, times[name], softmax.name, times["softmax"])
        add(results, case, BOTH, times[f"{name} both"], softmax.name, times["softmax both"])
        add(results, case, BACKWARD, times[f"{name} back"])
    at_full = full(sizes, "tokens", "tiles")
    for name, step, target in (
        ("narrow", FORWARD, 3.0),
        ("wide", FORWARD, 1.6),
        ("narrow", BOTH, 2.0),
        ("windows", FORWARD, 60.0),
    ):
        case, suffix = cases[name], "" if step == FORWARD else " both"
        value = median_ratio(times[f"softmax{suffix}"], times[f"{name}{suffix}"])
        where = f"T = {case.tokens:,}, {case.tiles} tiles, {case.window}, r = {case.acceptance:g}"
        name = f"{where}: {step} against SDPA of {sizes.tiles} heads"
        results.targets.append(at_least(name, value, target, full_size=at_full))
    return max(median_ratio(times[f"{name} back"], times[name]) for name in cases)


def over_lengths(results: Collector, sizes: Sizes) -> None:
    """Add rows for the plot, at lengths that the dense definition can run."""
    for tokens in sizes.curve:
        softmax = SoftmaxCase(tokens=tokens, heads=sizes.tiles)
        no_window = ScreeningCase(tokens=tokens, tiles=sizes.tiles, window=math.inf)
        windows = ScreeningCase(tokens=tokens, tiles=sizes.tiles)
        dense = DenseCase(windows)
        turns: Turns = {
            "softmax": softmax.forward,
            "dense": dense.forward,
            "no_window": no_window.forward,
            "windows": windows.forward,
        }
        times = results.measure_once(
            f"T = {tokens:,}, {sizes.tiles} tiles, all",
            partial(interleave, turns, sizes.rounds, limit=sizes.limit / 4),
        )
        add(results, no_window, FORWARD, times["no_window"], softmax.name, times["softmax"])
        add(results, windows, FORWARD, times["windows"], dense.name, times["dense"])


def growth(results: Collector, sizes: Sizes) -> None:
    cases = [ScreeningCase(tokens=tokens, tiles=sizes.tiles) for tokens in sizes.growth]
    lengths = f"T = {sizes.growth[0]:,} to {sizes.growth[-1]:,}"
    turns: Turns = {}
    for case in cases:
        turns |= {f"{case.tokens}": case.forward, f"{case.tokens} both": case.forward_backward}
    times = results.measure_once(
        f"growth from {lengths}", lambda: interleave(turns, sizes.rounds, limit=sizes.limit / 4)
    )
    slopes = []
    for step, suffix in ((FORWARD, ""), (BOTH, " both")):
        for case in cases:
            add(results, case, step, times[f"{case.tokens}{suffix}"])
        medians = [quartiles(times[f"{case.tokens}{suffix}"]).median for case in cases]
        slopes.append(power_law_exponent(zip(sizes.growth, medians, strict=True)))
    results.targets.append(
        at_most(
            f"{lengths}, {sizes.tiles} tiles, {cases[0].window}: growth exponent, the larger of {FORWARD} and {BOTH}",
            max(slopes),
            1.05,
            full_size=full(sizes, "growth", "tiles"),
        )
    )


def backward_over_forward(results: Collector, sizes: Sizes, largest: float) -> None:
    results.targets.append(
        at_most(
            "backward over forward, the largest of all settings and variants timed",
            largest,
            2.5,
            full_size=full(sizes, "tokens", "tiles", "dense_tokens", "dense_tiles"),
            unit="x",
        )
    )


def extra_memory(results: Collector, sizes: Sizes) -> None:
    if not memory.can_measure():
        results.notes.append("extra memory: not measured, this system does not report it in /proc")
        return
    megabytes = results.measure_once(
        f"memory at T = {sizes.memory_tokens:,}, in a process of its own",
        lambda: run_in_subprocess(kernel_mb, sizes.memory_tokens, sizes.memory_tiles),
    )
    results.targets.append(
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
    """Peak memory of the forward pass that saves tensors for backward, and of the backward pass. Initial windows."""
    # A small call allocates threads, operators and code.
    small = ScreeningCase(tokens=64, tiles=tiles)
    small.record_forward()
    small.backward()
    case = ScreeningCase(tokens=tokens, tiles=tiles)
    q, k, v, *_ = case.leaves
    forward = memory.peak_mb(case.record_forward, output_bytes=4 * v.numel())
    gradients = 4 * (q.numel() + k.numel() + v.numel())
    return {"forward": forward, "backward": memory.peak_mb(case.backward, output_bytes=gradients)}


def variants(results: Collector, sizes: Sizes) -> float:
    """Time every kernel variant that this machine can run, each in a process of its own.

    Returns the largest time of backward over forward.
    """
    supported, largest = library.instruction_sets(), 0.0
    for name in VARIANTS:
        if name not in supported:
            results.notes.append(f"variant {name}: not measured, this machine cannot run it")
            continue
        rows = results.measure_once(
            f"T = {sizes.tokens:,}, {sizes.tiles} tiles, variant {name}",
            partial(
                run_in_subprocess,
                variant_rows,
                *(sizes.tokens, sizes.tiles, sizes.rounds, sizes.limit / 4),
                environment={"KEYSIFT_ISA": name},
            ),
        )
        timed = [from_dict(Row, values) for values in rows]
        results.rows.extend(timed)
        seconds = {(timing.step, timing.what): timing.seconds.median for timing in timed}
        largest = max(largest, *(seconds[BACKWARD, timing.what] / seconds[FORWARD, timing.what] for timing in timed))
    return largest


def variant_rows(tokens: int, tiles: int, rounds: int, limit: float) -> list[dict[str, Any]]:
    """Rows of the kernel variant in KEYSIFT_ISA."""
    agreement.check_kernel()
    softmax = SoftmaxCase(tokens=tokens, heads=tiles)
    rows = []
    for window in (None, math.inf):
        case = ScreeningCase(tokens=tokens, tiles=tiles, window=window)
        setting = f"{case.setting}, {library.instruction_set()}"
        turns: Turns = {
            "ours": case.forward,
            "softmax": softmax.forward,
            "ours back": case.backward,
            "ours both": case.forward_backward,
            "softmax both": softmax.forward_backward,
        }
        times = take_turns(turns, [case], rounds, limit)
        for step, suffix in ((FORWARD, ""), (BOTH, " both")):
            ours, theirs = times[f"ours{suffix}"], times[f"softmax{suffix}"]
            rows.append(row(case.what, step, tokens, ours, setting=setting, against=softmax.name, theirs=theirs))
        rows.append(row(case.what, BACKWARD, tokens, times["ours back"], setting=setting))
    return [to_dict(timed) for timed in rows]


def training(results: Collector, sizes: Sizes) -> None:
    where = f"Multiscreen psi = {sizes.psi}, T = {sizes.train_tokens:,}, batch {sizes.train_batch}"
    times = results.measure_once(
        f"{where}: a training step",
        lambda: training_step.time_steps(
            psi=sizes.psi, batch=sizes.train_batch, tokens=sizes.train_tokens, rounds=1, compiled=sizes.compiled
        ),
    )
    at_full = full(sizes, "psi", "train_tokens", "train_batch")
    for path, target in (("dense, compiled", 4.0), ("dense, eager", 15.0)):
        if path not in times:
            results.notes.append(f"training step: {path} was left out, compiling takes longer than a quick run")
            continue
        value = median_ratio(times[path], times["kernel"])
        results.targets.append(
            at_least(f"{where}: tokens/s of a training step against {path}", value, target, full_size=at_full)
        )
        timed = row(
            f"Multiscreen psi = {sizes.psi}",
            "training step",
            sizes.train_tokens,
            times["kernel"],
            setting=f"batch {sizes.train_batch}",
            against=path,
            theirs=times[path],
        )
        at_once = training_step.SEQUENCES_AT_ONCE
        results.rows.append(replace(timed, note=f"dense: {at_once} sequences at a time, gradients summed"))
