"""What each mechanism costs beside torch's scaled_dot_product_attention (SDPA) on the same q, k and v.

Each runs on the backend `attend` chooses for it, after that backend agreed with the definition. Forward and forward +
backward take turns with SDPA; peak memory is measured in a process of its own. What would not fit in memory is said.

Letters: H heads, T tokens, K channels of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.bench import memory
from keysift.bench.child import in_a_child
from keysift.bench.gather import Gathered, Say
from keysift.bench.record import Result, at_most
from keysift.bench.timing import exponent, interleave, median_ratio, row, seconds
from keysift.core.config import config
from keysift.core.errors import DisagreementError
from keysift.evaluate import agreement
from keysift.kernels.attend import attend, explain
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.rules import Rule, Softmax, Threshold
from keysift.mechanisms.spec import Mechanism
from keysift.runs import machine

Step = Literal["forward", "forward + backward"]
STEPS: tuple[Step, Step] = ("forward", "forward + backward")
DENSE_MAPS = 8  # score maps that the dense definition and its gradients hold at once, at the least


@config
class Sizes:
    """Targets are met or missed at the sizes of FULL."""

    lengths: tuple[int, ...] = (1024, 4096, 16_384)
    rounds: int = 9
    """At each length, at most."""
    limit: float = 5.0
    """Seconds after which no more rounds of one mechanism and length begin."""
    alone: float = 100.0
    """Beyond the target length, seconds that one turn may be expected to take; SDPA is timed once for all there."""
    target_length: int = 4096
    memory: tuple[int, ...] = (1024, 4096)
    heads: int = 8
    width: int = 64


FULL = Sizes()
QUICK = Sizes(lengths=(512,), rounds=1, target_length=512, memory=(), heads=4, width=32)


@dataclass(frozen=True)
class Family:
    """Mechanisms that share a way of computing, and what they may cost beside SDPA."""

    name: str
    most: float | None


SOFTMAXES = Family("softmax family, each SDPA call it needs counted", 1.15)
ONE_PASS = Family("mechanisms of one pass", 2.5)
THRESHOLDS = Family("sparsemax and entmax15", 8.0)
OTHERS = Family("others", None)


def family(mechanism: Mechanism) -> Family:
    rule: Rule = mechanism.rule
    if isinstance(rule, Softmax):
        return SOFTMAXES
    if rule.single_pass:
        return ONE_PASS
    return THRESHOLDS if isinstance(rule, Threshold) and mechanism.name in ("sparsemax", "entmax15") else OTHERS


class Case:
    """One mechanism and SDPA on the same inputs: SDPA reads the first of a mechanism's maps."""

    def __init__(self, mechanism: Mechanism, tokens: int, heads: int, width: int) -> None:
        self.mechanism = mechanism
        random = torch.Generator().manual_seed(0)
        maps = (heads * mechanism.maps, heads * mechanism.key_maps, heads)
        self.inputs = [torch.randn(1, each, tokens, width, generator=random).requires_grad_() for each in maps]
        self.first = [x.detach()[:, :: x.shape[1] // heads].clone().requires_grad_() for x in self.inputs]
        self.towards = torch.randn(1, heads, tokens, width, generator=random)
        q, k, v = (x.detach() for x in self.inputs)
        self.backend = explain(mechanism, q, k, v).backend

    def ours(self, step: Step) -> object:
        return _run(lambda: attend(self.mechanism, *self.inputs), self.inputs, self.towards, step)

    def sdpa(self, step: Step) -> object:
        q, k, v = self.first
        return _run(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), self.first, self.towards, step)


def _run(forward: Callable[[], Tensor], leaves: list[Tensor], towards: Tensor, step: Step) -> object:
    if step == "forward":
        with torch.no_grad():
            return forward()
    return torch.autograd.grad(forward(), leaves, towards)


def measure(sizes: Sizes, *, command: str, say: Say) -> Result:
    found = Gathered(machine.examine(), say)
    costs: dict[tuple[Family, Step], tuple[float, str]] = {}
    growths: list[tuple[float, str]] = []
    for mechanism in MECHANISMS:
        expected: dict[Step, float] = {}
        for length in sizes.lengths:
            ratios = (
                time_alone(found, mechanism, sizes, length, expected)
                if length > sizes.target_length
                else time_one(found, mechanism, sizes, length)
            )
            for step, ratio in ratios.items():
                key = family(mechanism), step
                if length == sizes.target_length:
                    costs[key] = max(costs.get(key, (0.0, "")), (ratio, mechanism.name))
                    timed = next(row for row in reversed(found.rows) if row.step == step)
                    expected[step] = timed.seconds.median
        growth = extra_memory(found, mechanism, sizes)
        growths += [] if growth is None else [(growth, mechanism.name)]
    full = replace(sizes, rounds=FULL.rounds, limit=FULL.limit, alone=FULL.alone) == FULL
    for (kin, step), (cost, slowest) in costs.items():
        if kin.most is not None:
            said = f"T = {sizes.target_length:,}, {sizes.heads} heads of {sizes.width}, {kin.name}: {step} over SDPA, "
            said += f"the slowest, {slowest}"
            found.targets.append(at_most(said, cost, kin.most, full_size=full, unit="x"))
    if growths:
        growth, name = max(growths)
        said = f"T = {sizes.memory[0]:,} to {sizes.memory[-1]:,}: growth exponent of extra memory, the largest, {name}"
        found.targets.append(at_most(said, growth, 1.2, full_size=full))
    return found.result("mechanisms", command)


def time_one(found: Gathered, mechanism: Mechanism, sizes: Sizes, length: int) -> dict[Step, float]:
    """Rows of one mechanism at one length; what it costs over SDPA, for each call of SDPA that it needs."""
    case = ready(found, mechanism, sizes, length)
    if case is None:
        return {}
    turns = {f"{who} {step}": _turn(case, who, step) for step in STEPS for who in ("ours", "sdpa")}
    taken = found.cell(f"{mechanism.name}, T = {length:,}", lambda: interleave(turns, sizes.rounds, limit=sizes.limit))
    return add(found, case, sizes, {step: (taken[f"ours {step}"], taken[f"sdpa {step}"]) for step in STEPS})


def time_alone(
    found: Gathered, mechanism: Mechanism, sizes: Sizes, length: int, expected: dict[Step, float]
) -> dict[Step, float]:
    """The same where a turn takes seconds: once, after SDPA was timed once for all; not where it takes too long."""
    case = ready(found, mechanism, sizes, length)
    if case is None:
        return {}
    longer = (length / sizes.target_length) ** 2
    able = [step for step in STEPS if longer * expected.get(step, 0.0) <= sizes.alone]
    for step in STEPS:
        if step not in able:
            minutes = f"about {longer * expected[step]:.0f} s"
            found.notes.append(f"{mechanism.name}, {step} at T = {length:,}: not timed, it would take {minutes}")
    plain = Case(MECHANISMS.find("softmax"), length, sizes.heads, sizes.width)
    theirs = found.cell(
        f"SDPA, T = {length:,}, once for all", lambda: {step: [seconds(_turn(plain, "sdpa", step))] for step in STEPS}
    )
    ours = found.cell(
        f"{mechanism.name}, T = {length:,}", lambda: {step: [seconds(_turn(case, "ours", step))] for step in able}
    )
    return add(found, case, sizes, {step: (ours[step], theirs[step]) for step in able})


def ready(found: Gathered, mechanism: Mechanism, sizes: Sizes, length: int) -> Case | None:
    """None, and a note, if it does not fit in memory or does not agree with the definition."""
    if not fits(mechanism, sizes, length):
        found.notes.append(f"{mechanism.name} at T = {length:,}: not timed, its dense maps would not fit in memory")
        return None
    case = Case(mechanism, length, sizes.heads, sizes.width)
    wrong = found.cell(f"{mechanism.name} on {case.backend} agrees", lambda: disagreement(mechanism, case.backend))
    if wrong is not None:
        found.notes.append(f"{mechanism.name} at T = {length:,}: not timed, {wrong}")
        return None
    return case


def add(
    found: Gathered, case: Case, sizes: Sizes, taken: dict[Step, tuple[list[float], list[float]]]
) -> dict[Step, float]:
    mechanism = case.mechanism
    calls = mechanism.maps if isinstance(mechanism.rule, Softmax) else 1
    costs: dict[Step, float] = {}
    for step, (ours, theirs) in taken.items():
        setting = f"{sizes.heads} heads of {sizes.width}, {case.backend}"
        tokens = case.towards.shape[2]
        found.rows.append(row(mechanism.name, step, tokens, ours, setting=setting, against="SDPA", theirs=theirs))
        costs[step] = median_ratio(ours, theirs) / calls
    return costs


def _turn(case: Case, who: str, step: Step) -> Callable[[], object]:
    return (lambda: case.ours(step)) if who == "ours" else (lambda: case.sdpa(step))


def disagreement(mechanism: Mechanism, backend: str) -> str | None:
    """What `check` found wrong."""
    try:
        check(mechanism, backend)
    except DisagreementError as error:
        return str(error)
    return None


def check(mechanism: Mechanism, backend: str) -> None:
    """Raise DisagreementError unless the backend gives the definition's output and gradients, on a few blocks."""
    draws = [agreement.draw(mechanism, 150, 150, seed=seed) for seed in range(2)]
    agreement.no_worse_than_plain(mechanism, *draws, backend=backend)


def fits(mechanism: Mechanism, sizes: Sizes, length: int) -> bool:
    """Whether the maps of the dense definition fit in the memory that is free; other backends hold none."""
    if explain_at(mechanism, length) != "dense":
        return True
    return 4 * DENSE_MAPS * mechanism.maps * sizes.heads * length**2 < 0.7 * memory.free_bytes()


def explain_at(mechanism: Mechanism, length: int) -> str:
    """The backend chosen at a length; nothing is computed, and one number stands for each tensor."""
    q, k, v = (torch.zeros(1).expand(1, maps, length, 4) for maps in (mechanism.maps, mechanism.key_maps, 1))
    return explain(mechanism, q, k, v).backend


def extra_memory(found: Gathered, mechanism: Mechanism, sizes: Sizes) -> float | None:
    """Peak memory of forward + backward at each length, and how it grows; None where it was not measured."""
    if not sizes.memory:
        return None
    if not memory.measurable():
        found.notes.append(f"{mechanism.name}: extra memory not measured, this system does not report it in /proc")
        return None
    lengths = sizes.memory
    if not fits(mechanism, sizes, lengths[-1]):
        lengths = (lengths[0] // 4, lengths[0])
        found.notes.append(f"{mechanism.name}: extra memory measured at T = {lengths[0]:,} and {lengths[1]:,} only")
    found_mb = found.cell(
        f"{mechanism.name}, memory",
        lambda: in_a_child(extra_mb, mechanism.name, list(lengths), sizes.heads, sizes.width),
    )
    measured = dict(zip(lengths, found_mb, strict=True))
    for place, timed in enumerate(found.rows):
        if timed.what == mechanism.name and timed.step == STEPS[1] and timed.tokens in measured:
            found.rows[place] = replace(timed, extra_mb=measured[timed.tokens])
    # Below a megabyte the figure is noise.
    return exponent(lengths, [max(measured[length], 1.0) for length in lengths])


def extra_mb(name: str, lengths: list[int], heads: int, width: int) -> list[float]:
    """Forward + backward at each length, beyond inputs, output and gradients."""
    mechanism = MECHANISMS.find(name)
    Case(mechanism, 64, heads, width).ours(STEPS[1])  # threads, operators and code are paid for once
    found = []
    for tokens in lengths:
        case = Case(mechanism, tokens, heads, width)
        gradients = sum(4 * x.numel() for x in case.inputs)
        found.append(memory.peak_mb(lambda case=case: case.ours(STEPS[1]), outputs=gradients))  # type: ignore[misc]
    return found
