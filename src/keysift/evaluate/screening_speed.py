"""The benchmark of the screening kernel: each of its targets, measured in one process, turn by turn."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from keysift.core.config import config
from keysift.evaluate import agreement, machine, memory, training_speed
from keysift.evaluate.contestants import Dense, Screening, Softmax
from keysift.evaluate.latency import exponent, interleave, ratios, spread
from keysift.evaluate.performance import Machine, Performance, Row, Target, at_least, at_most

Step = Literal["forward", "backward", "forward + backward"]
FORWARD: Step = "forward"
BACKWARD: Step = "backward"
BOTH: Step = "forward + backward"


@config
class Sizes:
    """How long, how wide, how often. A target is met or missed only at the sizes of FULL."""

    dense_tokens: int = 4096
    dense_tiles: int = 16
    dense_rounds: int = 3
    tokens: int = 16_384
    tiles: int = 8
    rounds: int = 5
    curve: tuple[int, ...] = (1024, 4096)
    growth: tuple[int, ...] = (16_384, 32_768, 65_536, 131_072)
    growth_rounds: int = 7
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
    growth_rounds=5,
    memory_tokens=16_384,
    train_tokens=256,
    train_batch=2,
    compiled=False,
)


@dataclass
class Run:
    """What is being gathered."""

    sizes: Sizes
    machine: Machine
    say: Callable[[str], None]
    rows: list[Row] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    backward_over_forward: list[float] = field(default_factory=list)

    def full(self, *names: str) -> bool:
        return all(getattr(self.sizes, name) == getattr(FULL, name) for name in names)

    def row(
        self, case: Screening, step: Step, ours: Sequence[float], against: str = "", theirs: Sequence[float] = ()
    ) -> None:
        seconds = spread(ours)
        forward = step == FORWARD
        self.rows.append(
            Row(
                tokens=case.tokens,
                tiles=case.tiles,
                window=case.window,
                acceptance=case.acceptance,
                step=step,
                seconds=seconds,
                against=against,
                their_seconds=spread(theirs) if theirs else None,
                speedup=spread(ratios(theirs, ours)) if theirs else None,
                sgemm_share=case.flops / seconds.median / 1e9 / self.machine.sgemm_gflops if forward else None,
                read_share=case.bytes / seconds.median / 1e9 / self.machine.read_gb_per_s if forward else None,
            )
        )

    def backward(self, case: Screening, ours: Sequence[float], forward: Sequence[float]) -> None:
        self.row(case, BACKWARD, ours)
        self.backward_over_forward.append(spread(ratios(ours, forward)).median)


def measure(sizes: Sizes, *, command: str, say: Callable[[str], None]) -> Performance:
    """Everything, after the kernel has been found right."""
    say("checking the kernel against the definition, in value and five gradients")
    agreement.check_kernel()
    say("measuring what the machine can do")
    run = Run(sizes, machine.examine(), say)
    against_dense(run)
    against_softmax(run)
    over_lengths(run)
    growth(run)
    extra_memory(run)
    training(run)
    return Performance(
        command=command,
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=run.machine,
        rows=tuple(run.rows),
        targets=tuple(run.targets),
        notes=tuple(run.notes),
    )


def against_dense(run: Run) -> None:
    sizes = run.sizes
    case = Screening(tokens=sizes.dense_tokens, tiles=sizes.dense_tiles)
    dense = Dense(case)
    where = f"T = {case.tokens:,}, {case.tiles} tiles, windows {case.window}"
    run.say(f"{where}, against the {dense.name}")
    taken = interleave(
        {
            "ours": case.forward,
            "theirs": dense.forward,
            "our back": case.backward,
            "our both": case.both,
            "their both": dense.both,
        },
        sizes.dense_rounds,
    )
    run.row(case, FORWARD, taken["ours"], dense.name, taken["theirs"])
    run.row(case, BOTH, taken["our both"], dense.name, taken["their both"])
    run.backward(case, taken["our back"], taken["ours"])
    full = run.full("dense_tokens", "dense_tiles")
    for step, ours, theirs, target in ((FORWARD, "ours", "theirs", 100.0), (BOTH, "our both", "their both", 40.0)):
        value = spread(ratios(taken[theirs], taken[ours])).median
        run.targets.append(at_least(f"{where}: {step} against the {dense.name}", value, target, full_size=full))


def against_softmax(run: Run) -> None:
    sizes = run.sizes
    softmax = Softmax(tokens=sizes.tokens, heads=sizes.tiles)
    cases = {
        "narrow": Screening(tokens=sizes.tokens, tiles=sizes.tiles, window=math.inf, acceptance=0.5),
        "wide": Screening(tokens=sizes.tokens, tiles=sizes.tiles, window=math.inf, acceptance=0.999),
        "windows": Screening(tokens=sizes.tokens, tiles=sizes.tiles),
    }
    run.say(f"T = {sizes.tokens:,}, {sizes.tiles} tiles, against {softmax.name}")
    turns: dict[str, Callable[[], object]] = {"softmax": softmax.forward, "softmax both": softmax.both}
    for name, case in cases.items():
        turns |= {name: case.forward, f"{name} back": case.backward, f"{name} both": case.both}
    taken = interleave(turns, sizes.rounds)
    for name, case in cases.items():
        run.row(case, FORWARD, taken[name], softmax.name, taken["softmax"])
        run.row(case, BOTH, taken[f"{name} both"], softmax.name, taken["softmax both"])
        run.backward(case, taken[f"{name} back"], taken[name])
    full = run.full("tokens", "tiles")
    for name, step, target in (
        ("narrow", FORWARD, 3.0),
        ("wide", FORWARD, 1.6),
        ("narrow", BOTH, 2.0),
        ("windows", FORWARD, 60.0),
    ):
        case, suffix = cases[name], "" if step == FORWARD else " both"
        value = spread(ratios(taken[f"softmax{suffix}"], taken[f"{name}{suffix}"])).median
        windows = "w infinite" if case.window == "infinite" else f"windows {case.window}"
        where = f"T = {case.tokens:,}, {case.tiles} tiles, {windows}, r = {case.acceptance:g}"
        said = f"{where}: {step} against SDPA of {sizes.tiles} heads"
        run.targets.append(at_least(said, value, target, full_size=full))


def over_lengths(run: Run) -> None:
    """Rows for the plot: everybody at lengths the dense definition can bear."""
    for tokens in run.sizes.curve:
        run.say(f"T = {tokens:,}, {run.sizes.tiles} tiles, everybody")
        softmax = Softmax(tokens=tokens, heads=run.sizes.tiles)
        endless = Screening(tokens=tokens, tiles=run.sizes.tiles, window=math.inf)
        windows = Screening(tokens=tokens, tiles=run.sizes.tiles)
        dense = Dense(windows)
        taken = interleave(
            {
                "softmax": softmax.forward,
                "dense": dense.forward,
                "endless": endless.forward,
                "windows": windows.forward,
            },
            run.sizes.rounds,
        )
        run.row(endless, FORWARD, taken["endless"], softmax.name, taken["softmax"])
        run.row(windows, FORWARD, taken["windows"], dense.name, taken["dense"])


def growth(run: Run) -> None:
    sizes = run.sizes
    cases = [Screening(tokens=tokens, tiles=sizes.tiles) for tokens in sizes.growth]
    lengths = f"T = {sizes.growth[0]:,} to {sizes.growth[-1]:,}"
    run.say(f"growth from {lengths}")
    turns: dict[str, Callable[[], object]] = {}
    for case in cases:
        turns |= {f"{case.tokens}": case.forward, f"{case.tokens} both": case.both}
    taken = interleave(turns, sizes.growth_rounds)
    slopes = []
    for step, suffix in ((FORWARD, ""), (BOTH, " both")):
        for case in cases:
            run.row(case, step, taken[f"{case.tokens}{suffix}"])
        times = [spread(taken[f"{case.tokens}{suffix}"]).median for case in cases]
        slopes.append(exponent(sizes.growth, times))
    run.targets.append(
        at_most(
            f"{lengths}, {sizes.tiles} tiles, windows {cases[0].window}: growth exponent, "
            f"the larger of {FORWARD} and {BOTH}",
            max(slopes),
            1.05,
            full_size=run.full("growth", "tiles"),
        )
    )
    run.targets.append(
        at_most(
            "backward over forward, the largest of the settings timed",
            max(run.backward_over_forward),
            2.5,
            full_size=run.full("tokens", "tiles", "dense_tokens", "dense_tiles"),
            unit="x",
        )
    )


def extra_memory(run: Run) -> None:
    sizes = run.sizes
    if not memory.measurable():
        run.notes.append("extra memory: not measured, this system does not report it in /proc")
        return
    run.say(f"memory at T = {sizes.memory_tokens:,}, in a process of its own")
    found = memory.extra_mb(sizes.memory_tokens, sizes.memory_tiles)
    run.targets.append(
        at_most(
            f"T = {sizes.memory_tokens:,}, {sizes.memory_tiles} tiles, windows as initialised: memory beyond "
            f"inputs and outputs, the larger of {FORWARD} and {BACKWARD}",
            max(found.values()),
            64.0,
            full_size=run.full("memory_tokens", "memory_tiles"),
            unit="MB",
        )
    )


def training(run: Run) -> None:
    sizes = run.sizes
    if not training_speed.available():
        run.notes.append("training step: not measured, keysift.models is not installed")
        return
    where = f"Multiscreen psi = {sizes.psi}, T = {sizes.train_tokens:,}, batch {sizes.train_batch}"
    run.say(f"{where}: a training step")
    taken = training_speed.time_steps(
        psi=sizes.psi,
        batch=sizes.train_batch,
        tokens=sizes.train_tokens,
        rounds=sizes.dense_rounds,
        compiled=sizes.compiled,
    )
    full = run.full("psi", "train_tokens", "train_batch")
    for path, target in (("dense, compiled", 4.0), ("dense, eager", 15.0)):
        if path not in taken:
            run.notes.append(f"training step: {path} was left out, compiling takes longer than a quick run")
            continue
        speedup = spread(ratios(taken[path], taken["kernel"]))
        run.targets.append(
            at_least(f"{where}: tokens/s of a training step against {path}", speedup.median, target, full_size=full)
        )
        run.rows.append(
            Row(
                tokens=sizes.train_tokens,
                tiles=sizes.psi,
                window="learned",
                acceptance=None,
                step="training step",
                seconds=spread(taken["kernel"]),
                against=path,
                their_seconds=spread(taken[path]),
                speedup=speedup,
                note=f"psi = {sizes.psi}, batch {sizes.train_batch}; dense {training_speed.SEQUENCES_AT_ONCE} "
                "sequences at a time, gradients summed",
            )
        )
