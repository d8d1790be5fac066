"""Benchmark of mechanisms: each against torch's scaled_dot_product_attention (SDPA) on the same q, k and v.

Each mechanism runs on the backend that `attend` chooses, after that backend agrees with the definition. Forward and
forward + backward take turns with SDPA. Peak memory is measured in a process of its own. Notes list what was not timed
because it does not fit in memory. ALiBi, forget gates near 1 and windows are timed after the mechanisms. Windows are
compared with SDPA over every key.

Letters: H heads, T tokens, K channels of a head.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.bench import peak_memory as memory
from keysift.bench.collector import Collector, Log
from keysift.bench.subprocess_call import run_in_subprocess
from keysift.bench.timing import interleave, median_ratio, row, seconds
from keysift.core.config import config
from keysift.core.errors import DisagreementError
from keysift.core.statistics import power_law_exponent
from keysift.kernels.attend import attend, explain
from keysift.kernels.call import Options
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.rules import Rule, Softmax, StickBreaking, Threshold
from keysift.mechanisms.spec import Mechanism
from keysift.nn.position import alibi_slopes
from keysift.records.bench import Result, at_least, at_most
from keysift.runs import machine
from keysift.verify import agreement

Step = Literal["forward", "forward + backward"]
STEPS: tuple[Step, Step] = ("forward", "forward + backward")
DENSE_MAPS = 8  # score maps that the dense definition and its gradients hold at once, at least


@config
class Sizes:
    """Targets apply at the sizes of FULL."""

    lengths: tuple[int, ...] = (1024, 4096, 16_384)
    rounds: int = 9
    """Maximum at each length."""
    limit: float = 4.0
    """Seconds after which no more rounds of one mechanism and length begin."""
    alone: float = 60.0
    """Beyond the target length: the longest expected turn, in seconds. SDPA is timed once for all mechanisms there."""
    target_length: int = 4096
    memory: tuple[int, ...] = (1024, 4096)
    window: int = 256
    """Of the windowed mechanisms, at the longest length."""
    heads: int = 8
    width: int = 64


FULL = Sizes()
QUICK = Sizes(lengths=(512,), rounds=1, target_length=512, memory=(), window=64, heads=4, width=32)


@dataclass(frozen=True)
class Family:
    """Mechanisms that are computed alike, and the target for their time over SDPA."""

    name: str
    max_cost: float | None


SOFTMAXES = Family("softmax family, each SDPA call it needs counted", 1.15)
SINGLE_PASS = Family("single-pass mechanisms", 2.5)
NEAREST = Family("TRA, TDA and stick-breaking", 1.5)
BIASED = Family("FoX and ALiBi", 1.3)
TWO_MAPS_BIASED = Family("ALiBi with two maps", 2.2)
CLIPPED = Family("Elastic-Softmax and clipped softmax", 1.3)
THRESHOLDS = Family("sparsemax and entmax15", 8.0)
OTHERS = Family("others", None)


@dataclass(frozen=True)
class Setting:
    """Positions and gates of a call, which SDPA does not get, and the level of its scores."""

    name: str = ""
    level: float = 0.0
    alibi: bool = False
    forget: float | None = None
    window: int | None = None

    def options(self, tokens: int, heads: int) -> Options:
        options = Options()
        if self.alibi:
            options["slopes"] = torch.tensor(alibi_slopes(heads))
        if self.forget is not None:
            options["scalars"] = {"log_forget": torch.full((1, heads, tokens), self.forget).log()}
        if self.window is not None:
            options["window"] = self.window
        return options


PLAIN = Setting()


def family(mechanism: Mechanism, setting: Setting = PLAIN) -> Family:
    rule: Rule = mechanism.rule
    if setting.alibi or (isinstance(rule, Softmax) and rule.forget is not None):
        return BIASED if rule.maps == 1 else TWO_MAPS_BIASED
    if isinstance(rule, Softmax):
        return SOFTMAXES
    if isinstance(rule, StickBreaking) or mechanism.name in ("tra", "tda"):
        return NEAREST
    if mechanism.name in ("elastic_softmax", "clipped_softmax"):
        return CLIPPED
    if rule.single_pass:
        return SINGLE_PASS
    return THRESHOLDS if isinstance(rule, Threshold) and mechanism.name in ("sparsemax", "entmax15") else OTHERS


# Gates and shares of 1/2, the initial values, leave few keys to read; these leave 2,400 and all.
SETTINGS = (
    *((name, Setting("ALiBi", alibi=True)) for name in ("softmax", "differential_v1", "differential_v2")),
    ("forgetting", Setting("gates of 0.95", forget=0.95)),
    ("forgetting", Setting("gates of 0.999", forget=0.999)),
    ("stick_breaking", Setting("shares of 0.001", level=-7.0)),
)
WINDOWED = ("softmax", "softmax_sink", "relu_squared", "tra", "elastic_softmax", "stick_breaking")


class Case:
    """One mechanism and SDPA on the same inputs. SDPA reads the first map of a mechanism with several."""

    def __init__(self, mechanism: Mechanism, tokens: int, heads: int, width: int, setting: Setting = PLAIN) -> None:
        self.mechanism = mechanism
        self.family = family(mechanism, setting)
        self.name = f"{mechanism.name}, {setting.name}" if setting.name else mechanism.name
        self.options = setting.options(tokens, heads)
        random = torch.Generator().manual_seed(0)
        maps = (heads * mechanism.maps, heads * mechanism.key_maps, heads)
        self.inputs = [
            torch.randn(1, heads_of_map, tokens, width, generator=random).requires_grad_() for heads_of_map in maps
        ]
        if setting.level:
            with torch.no_grad():
                self.inputs[0][..., 0], self.inputs[1][..., 0] = math.sqrt(width), setting.level
        self.first = [x.detach()[:, :: x.shape[1] // heads].clone().requires_grad_() for x in self.inputs]
        self.grad_output = torch.randn(1, heads, tokens, width, generator=random)
        q, k, v = (x.detach() for x in self.inputs)
        self.backend = explain(mechanism, q, k, v, **self.options).backend

    def ours(self, step: Step) -> object:
        return _run(lambda: attend(self.mechanism, *self.inputs, **self.options), self.inputs, self.grad_output, step)

    def sdpa(self, step: Step) -> object:
        q, k, v = self.first
        return _run(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), self.first, self.grad_output, step)


def _run(forward: Callable[[], Tensor], leaves: list[Tensor], grad_output: Tensor, step: Step) -> object:
    if step == "forward":
        with torch.no_grad():
            return forward()
    return torch.autograd.grad(forward(), leaves, grad_output)


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    results = Collector(machine.examine(), log)
    costs: dict[tuple[Family, Step], tuple[float, str]] = {}
    growths: list[tuple[float, str]] = []
    for mechanism in MECHANISMS:
        expected: dict[Step, float] = {}
        for length in sizes.lengths:
            ratios = (
                time_once(results, mechanism, sizes, length, expected)
                if length > sizes.target_length
                else time_in_turns(results, mechanism, sizes, length)
            )
            for step, ratio in ratios.items():
                if length == sizes.target_length:
                    _keep_slowest(costs, family(mechanism), step, ratio, mechanism.name)
                    timed = next(row for row in reversed(results.rows) if row.step == step)
                    expected[step] = timed.seconds.median
        growth = extra_memory(results, mechanism, sizes)
        growths += [] if growth is None else [(growth, mechanism.name)]
    for name, setting in SETTINGS:
        mechanism = MECHANISMS.find(name)
        ratios = time_in_turns(results, mechanism, sizes, sizes.target_length, setting)
        for step, ratio in ratios.items():
            _keep_slowest(costs, family(mechanism, setting), step, ratio, f"{name}, {setting.name}")
    full = replace(sizes, rounds=FULL.rounds, limit=FULL.limit, alone=FULL.alone) == FULL
    for (group, step), (cost, slowest) in costs.items():
        if group.max_cost is not None:
            where = f"T = {sizes.target_length:,}, {sizes.heads} heads of {sizes.width}"
            title = f"{where}, {group.name}: {step} over SDPA, the slowest, {slowest}"
            results.targets.append(at_most(title, cost, group.max_cost, full_size=full, unit="x"))
    for step, (speedup, slowest) in time_windows(results, sizes).items():
        title = f"T = {sizes.lengths[-1]:,}, a window of {sizes.window}: {step}, SDPA over the slowest, {slowest}"
        results.targets.append(at_least(title, speedup, 12.0, full_size=full))
    if growths:
        growth, name = max(growths)
        title = f"T = {sizes.memory[0]:,} to {sizes.memory[-1]:,}: growth exponent of extra memory, the largest, {name}"
        results.targets.append(at_most(title, growth, 1.2, full_size=full))
    return results.result("mechanisms", command)


def _keep_slowest(
    costs: dict[tuple[Family, Step], tuple[float, str]], group: Family, step: Step, ratio: float, name: str
) -> None:
    costs[group, step] = max(costs.get((group, step), (0.0, "")), (ratio, name))


def time_windows(results: Collector, sizes: Sizes) -> dict[Step, tuple[float, str]]:
    """Time mechanisms with a window at the longest length.

    Returns the name of the slowest for each step, and how many times longer SDPA takes over every key.
    """
    length, setting = sizes.lengths[-1], Setting(f"window of {sizes.window}", window=sizes.window)
    slowest: dict[Step, tuple[float, str]] = {}
    for name in WINDOWED:
        case = checked_case(results, MECHANISMS.find(name), sizes, length, setting)
        if case is None:
            continue
        turns = {step: _turn(case, "ours", step) for step in STEPS}
        times = results.measure_once(
            f"{case.name}, T = {length:,}",
            lambda turns=turns: interleave(turns, sizes.rounds, limit=sizes.limit),  # type: ignore[misc]
        )
        medians = {step: [statistics.median(times[step])] for step in STEPS}
        sdpa = sdpa_once(results, sizes, length)
        for step, cost in add(results, case, sizes, {step: (medians[step], sdpa[step]) for step in STEPS}).items():
            slowest[step] = min(slowest.get(step, (math.inf, "")), (1 / cost, name))
    return slowest


def sdpa_once(results: Collector, sizes: Sizes, length: int) -> dict[Step, list[float]]:
    """One turn of SDPA at a length where a turn takes seconds, for all mechanisms."""
    plain = Case(MECHANISMS.find("softmax"), length, sizes.heads, sizes.width)
    times: dict[Step, list[float]] = results.measure_once(
        f"SDPA, T = {length:,}, once for all", lambda: {step: [seconds(_turn(plain, "sdpa", step))] for step in STEPS}
    )
    return times


def time_in_turns(
    results: Collector, mechanism: Mechanism, sizes: Sizes, length: int, setting: Setting = PLAIN
) -> dict[Step, float]:
    """Time one mechanism at one length. Returns its time over SDPA, for SOFTMAXES over the SDPA calls that it needs."""
    case = checked_case(results, mechanism, sizes, length, setting)
    if case is None:
        return {}
    turns = {f"{side} {step}": _turn(case, side, step) for step in STEPS for side in ("ours", "sdpa")}
    times = results.measure_once(
        f"{case.name}, T = {length:,}", lambda: interleave(turns, sizes.rounds, limit=sizes.limit)
    )
    return add(results, case, sizes, {step: (times[f"ours {step}"], times[f"sdpa {step}"]) for step in STEPS})


def time_once(
    results: Collector, mechanism: Mechanism, sizes: Sizes, length: int, expected: dict[Step, float]
) -> dict[Step, float]:
    """As `time_in_turns`, but one turn each where a turn takes seconds, and none where it would take too long."""
    case = checked_case(results, mechanism, sizes, length)
    if case is None:
        return {}
    longer = (length / sizes.target_length) ** 2
    quick_enough = [step for step in STEPS if longer * expected.get(step, 0.0) <= sizes.alone]
    for step in STEPS:
        if step not in quick_enough:
            duration = f"about {longer * expected[step]:.0f} s"
            results.notes.append(f"{mechanism.name}, {step} at T = {length:,}: not timed, it would take {duration}")
    theirs = sdpa_once(results, sizes, length)
    ours = results.measure_once(
        f"{mechanism.name}, T = {length:,}",
        lambda: {step: [seconds(_turn(case, "ours", step))] for step in quick_enough},
    )
    return add(results, case, sizes, {step: (ours[step], theirs[step]) for step in quick_enough})


def checked_case(
    results: Collector, mechanism: Mechanism, sizes: Sizes, length: int, setting: Setting = PLAIN
) -> Case | None:
    """The case, or None and a note if it does not fit in memory or disagrees with the definition."""
    if not fits(mechanism, sizes, length):
        results.notes.append(f"{mechanism.name} at T = {length:,}: not timed, its dense maps would not fit in memory")
        return None
    case = Case(mechanism, length, sizes.heads, sizes.width, setting)
    error = results.measure_once(
        f"{case.name} on {case.backend} agrees", lambda: disagreement(mechanism, case.backend, setting)
    )
    if error is not None:
        results.notes.append(f"{case.name} at T = {length:,}: not timed, {error}")
        return None
    return case


def add(
    results: Collector, case: Case, sizes: Sizes, times: dict[Step, tuple[list[float], list[float]]]
) -> dict[Step, float]:
    calls = case.mechanism.maps if case.family is SOFTMAXES else 1
    costs: dict[Step, float] = {}
    for step, (ours, theirs) in times.items():
        setting = f"{sizes.heads} heads of {sizes.width}, {case.backend}"
        tokens = case.grad_output.shape[2]
        results.rows.append(row(case.name, step, tokens, ours, setting=setting, against="SDPA", theirs=theirs))
        costs[step] = median_ratio(ours, theirs) / calls
    return costs


def _turn(case: Case, side: str, step: Step) -> Callable[[], object]:
    return (lambda: case.ours(step)) if side == "ours" else (lambda: case.sdpa(step))


def disagreement(mechanism: Mechanism, backend: str, setting: Setting = PLAIN) -> str | None:
    """The message of the error that `check` raises, or None."""
    try:
        check(mechanism, backend, setting)
    except DisagreementError as error:
        return str(error)
    return None


def check(mechanism: Mechanism, backend: str, setting: Setting = PLAIN) -> None:
    """Raise DisagreementError unless output and gradients of the backend agree with the definition, on a few blocks."""
    draws = [agreement.draw_inputs(mechanism, 150, 150, seed=seed) for seed in range(2)]
    heads = draws[0]["q"].shape[1] // mechanism.maps
    options = replace(setting, window=setting.window and 60, forget=None).options(150, heads)
    agreement.check_agreement(mechanism, *draws, backend=backend, **options)


def fits(mechanism: Mechanism, sizes: Sizes, length: int) -> bool:
    """Whether the maps of the dense definition fit in free memory. Other backends hold no maps."""
    if chosen_backend(mechanism, length) != "dense":
        return True
    return 4 * DENSE_MAPS * mechanism.maps * sizes.heads * length**2 < 0.7 * memory.free_bytes()


def chosen_backend(mechanism: Mechanism, length: int) -> str:
    """The backend that `attend` chooses at a length. Nothing is computed: the tensors are expanded from one number."""
    q, k, v = (torch.zeros(1).expand(1, maps, length, 4) for maps in (mechanism.maps, mechanism.key_maps, 1))
    return explain(mechanism, q, k, v).backend


def extra_memory(results: Collector, mechanism: Mechanism, sizes: Sizes) -> float | None:
    """Measure peak memory of forward + backward by length. Returns its growth exponent, or None if not measured."""
    if not sizes.memory:
        return None
    if not memory.can_measure():
        results.notes.append(f"{mechanism.name}: extra memory not measured, this system does not report it in /proc")
        return None
    lengths = sizes.memory
    if not fits(mechanism, sizes, lengths[-1]):
        lengths = (lengths[0] // 4, lengths[0])
        results.notes.append(f"{mechanism.name}: extra memory measured at T = {lengths[0]:,} and {lengths[1]:,} only")
    megabytes = results.measure_once(
        f"{mechanism.name}, memory",
        lambda: run_in_subprocess(extra_mb, mechanism.name, list(lengths), sizes.heads, sizes.width),
    )
    measured = dict(zip(lengths, megabytes, strict=True))
    for place, timed in enumerate(results.rows):
        if timed.what == mechanism.name and timed.step == STEPS[1] and timed.tokens in measured:
            results.rows[place] = replace(timed, extra_mb=measured[timed.tokens])
    # Below a megabyte the value is noise.
    return power_law_exponent([(length, max(measured[length], 1.0)) for length in lengths])


def extra_mb(name: str, lengths: list[int], heads: int, width: int) -> list[float]:
    """Peak memory of forward + backward at each length, beyond inputs, output and gradients."""
    mechanism = MECHANISMS.find(name)
    Case(mechanism, 64, heads, width).ours(STEPS[1])  # allocates threads, operators and code once
    megabytes = []
    for tokens in lengths:
        case = Case(mechanism, tokens, heads, width)
        gradients = sum(4 * x.numel() for x in case.inputs)
        megabytes.append(memory.peak_mb(lambda case=case: case.ours(STEPS[1]), output_bytes=gradients))  # type: ignore[misc]
    return megabytes
