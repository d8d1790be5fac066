"""Benchmark of small calls: what `attend` costs beyond the operator that computes the result.

A call of 64 tokens and one head takes turns with its operator: torch's scaled_dot_product_attention for softmax, for
other mechanisms the backend that `attend` chooses, on arguments that are already checked. One thread, no gradients.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from keysift.bench.collector import Collector, Log
from keysift.bench.timing import Turns, interleave, row
from keysift.core.config import config
from keysift.kernels.attend import BACKENDS, attend, explain
from keysift.kernels.call import make_call
from keysift.kernels.masked_values import sanitize
from keysift.mechanisms import find
from keysift.records.bench import Result, at_most
from keysift.runs import machine

LIMIT_US = 40.0


@config
class Sizes:
    tokens: int = 64
    key_widths: tuple[int, ...] = (16, 64)
    value_width: int = 64
    mechanisms: tuple[str, ...] = ("softmax", "screening", "sigmoid", "entmax15")
    rounds: int = 300


FULL = Sizes()
QUICK = replace(FULL, rounds=50)


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    results = Collector(machine.examine(), log)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name in sizes.mechanisms:
            for width in sizes.key_widths:
                compare(results, sizes, name, width)
    finally:
        torch.set_num_threads(threads)
    results.notes.append("one thread; over: median of attend minus median of the operator, round by round in turns")
    return results.result("overhead", command)


@torch.no_grad()
def compare(results: Collector, sizes: Sizes, name: str, width: int) -> None:
    """Time `attend` against its operator at one key width."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, sizes.tokens, width, generator=generator) for _ in range(2))
    v = torch.randn(1, 1, sizes.tokens, sizes.value_width, generator=generator)
    against, operator = operator_of(name, q, k, v)
    turns: Turns = {"attend": lambda: attend(name, q, k, v), "operator": operator}
    setting = f"1 head, K = {width}, V = {sizes.value_width}"
    times = results.measure_once(f"{name}, {setting}", lambda: interleave(turns, sizes.rounds))
    timed = row(
        f"attend, {name}",
        "forward",
        sizes.tokens,
        times["attend"],
        setting=setting,
        against=against,
        theirs=times["operator"],
    )
    assert timed.their_seconds is not None
    over = 1e6 * (timed.seconds.median - timed.their_seconds.median)
    results.rows.append(timed)
    target = f"{sizes.tokens} tokens, {setting}: attend with {name} over {against}"
    full = sizes.rounds >= FULL.rounds
    results.targets.append(at_most(target, over, LIMIT_US, full_size=full, unit="us"))


def operator_of(name: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[str, Callable[[], object]]:
    """Name and call of the operator that computes the result, without any check."""
    if name == "softmax":
        return "SDPA", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    backend = BACKENDS.find(explain(name, q, k, v).backend)
    call, _ = sanitize(make_call(find(name), q, k, v))
    return backend.name, lambda: backend.run(call)
