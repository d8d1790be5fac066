"""Benchmark of screening on an accelerator, compared with torch's softmax attention.

Lengths, windows and widths are those of the paper and of public ports. The record names the device and its backend.
Before it times them, the benchmark compares the kernels with the definition on the device: they were never run on one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from keysift.bench.collector import Collector, Log
from keysift.bench.timing import Turns, interleave, row
from keysift.kernels.attend import attend, explain
from keysift.kernels.gpu.configurations import DTYPES
from keysift.kernels.positions import Positions
from keysift.mechanisms import find
from keysift.records.bench import Result, Step
from keysift.runs import machine
from keysift.verify.agreement import check_agreement, draw_several


@dataclass(frozen=True)
class Shape:
    """Heads, widths and window of a case."""

    what: str
    batch: int
    heads: int
    key_width: int
    value_width: int
    window: float

    @property
    def setting(self) -> str:
        return f"batch {self.batch}, {self.heads} heads, widths {self.key_width} and {self.value_width}"


PAPER = (
    Shape("window 256", 1, 16, 16, 64, 256.0),
    Shape("infinite window", 1, 16, 16, 64, math.inf),
)
PORT = Shape("infinite window, shape of a public port", 4, 8, 64, 64, math.inf)
PORT_LENGTHS = (512, 1024, 2048, 4096)
DTYPE = torch.bfloat16


def measure(
    device: torch.device, lengths: tuple[int, ...], rounds: int, limit: float, *, command: str, log: Log
) -> Result:
    """Time forward, backward and decode steps on a device."""
    results = Collector(replace(machine.examine(), accelerator=_name(device)), log)
    like = torch.zeros(1, 1, 64, 16, dtype=DTYPE, device=device)
    choice = explain("screening", like, like, like)
    log(f"{_name(device)}: backend {choice.backend}")
    results.notes.append(f"backend on {_name(device)}: {choice.backend}")
    results.notes += [f"{name} declined: {reason}" for name, reason in choice.declined.items()]
    results.notes += [_checked(name, dtype, device, log) for name in ("screening", "softpick") for dtype in DTYPES]
    for shape, tokens in [*((PORT, n) for n in PORT_LENGTHS if n <= max(lengths)), *_cases(lengths)]:
        _measure_case(results, device, shape, tokens, rounds, limit)
    return results.result("screening", command)


def _checked(name: str, dtype: torch.dtype, device: torch.device, log: Log) -> str:
    """Raise DisagreementError unless the backend that the device gets agrees with the definition, in value and every
    gradient. Returns a note."""
    draws = [
        {name: x.to(device) for name, x in draw.items()} for draw in draw_several(find(name), queries=130, keys=130)
    ]
    backend = explain(name, *(draws[0][x].to(dtype) for x in "qkv")).backend
    where = f"in {dtype} on {_name(device)}; please report this in an issue"
    check_agreement(find(name), *draws, backend=backend, dtype=dtype, where=where)
    note = f"{name} in {dtype}: {backend} agrees with the definition, in value and every gradient"
    log(note)
    return note


def _cases(lengths: tuple[int, ...]) -> Iterator[tuple[Shape, int]]:
    for shape in PAPER:
        yield from ((shape, tokens) for tokens in lengths)


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _measure_case(
    results: Collector, device: torch.device, shape: Shape, tokens: int, rounds: int, limit: float
) -> None:
    generator = torch.Generator().manual_seed(tokens)

    def leaf(length: int, width: int) -> Tensor:
        x = torch.randn(shape.batch, shape.heads, length, width, generator=generator)
        return x.to(device, DTYPE).requires_grad_()

    q, k, v = leaf(tokens, shape.key_width), leaf(tokens, shape.key_width), leaf(tokens, shape.value_width)
    q64, k64 = leaf(tokens, 64), leaf(tokens, 64)
    scalars = {"window": torch.full((shape.heads,), shape.window, device=device)}
    scalars["acceptance"] = torch.full((shape.heads,), 0.5, device=device)

    def ours(queries: int) -> Tensor:
        positions = Positions.counted(queries, tokens)
        return attend("screening", q[:, :, tokens - queries :], k, v, scalars=scalars, positions=positions)

    def theirs(queries: int) -> Tensor:
        return scaled_dot_product_attention(q64[:, :, tokens - queries :], k64, v, is_causal=queries == tokens)

    steps: dict[Step, tuple[Callable[[], object], Callable[[], object]]] = {
        "forward": (_inference(ours, tokens), _inference(theirs, tokens)),
        "forward + backward": (_training(ours, tokens), _training(theirs, tokens)),
        "decode": (_inference(ours, 1), _inference(theirs, 1)),
    }
    for step, (our_step, their_step) in steps.items():
        turns: Turns = {"ours": _waiting(our_step, device), "theirs": _waiting(their_step, device)}
        name = f"{shape.what}, T = {tokens:,}, {step}"
        try:
            times = results.measure_once(name, partial(interleave, turns, rounds, limit=limit))
        except torch.OutOfMemoryError:
            results.notes.append(f"{name}: out of memory")
            continue
        against = "SDPA, widths 64 and " + str(shape.value_width)
        results.rows.append(
            row(shape.what, step, tokens, times["ours"], setting=shape.setting, against=against, theirs=times["theirs"])
        )
        for x in (q, k, v, q64, k64):
            x.grad = None


def _inference(run: Callable[[int], Tensor], queries: int) -> Callable[[], object]:
    def step() -> object:
        with torch.no_grad():
            return run(queries)

    return step


def _training(run: Callable[[int], Tensor], queries: int) -> Callable[[], object]:
    def step() -> None:
        torch.autograd.backward(run(queries).sum())

    return step


def _waiting(run: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The step, and on a CUDA device the wait for its end."""

    def step() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step
