"""Measure the rounding errors of every backend against the definition in fp64, for every mechanism."""

import time
from collections.abc import Callable, Iterator

import torch

from keysift.core.errors import UnsupportedError
from keysift.kernels.attend import BACKENDS, explain
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism
from keysift.records.exactness import BackendError, Exactness
from keysift.runs import machine
from keysift.verify.agreement import QUERIES_AND_KEYS, Errors, draw_several, measure_errors


def measure_exactness(command: str, *, progress: Callable[[str, int, int, str], None] | None = None) -> Exactness:
    """Run every mechanism on every backend that accepts it, in fp32, and compare value and every gradient."""
    start = time.monotonic()
    rows: list[BackendError] = []
    mechanisms = list(MECHANISMS)
    for done, mechanism in enumerate(mechanisms, 1):
        rows += _mechanism_errors(mechanism)
        if progress is not None:
            progress("mechanisms", done, len(mechanisms), mechanism.name)
    return Exactness(rows=tuple(rows), made=machine.record_provenance(command, start))


def _mechanism_errors(mechanism: Mechanism) -> Iterator[BackendError]:
    for backend in BACKENDS.names():
        if backend == "dense":
            continue
        errors: dict[str, Errors] = {}
        for queries, keys in QUERIES_AND_KEYS:
            draws = draw_several(mechanism, queries, keys)
            try:
                explain(mechanism, *(draws[0][name].float() for name in "qkv"), backend=backend)
            except UnsupportedError:
                break
            _, measured = measure_errors(mechanism, *draws, backend=backend)
            errors |= {f"{name}, {queries} x {keys}": error for name, error in measured.items() if error.size > 0}
        else:
            # The largest of all, or the first that is NaN.
            tensor = max(errors, key=lambda name: _rank(errors[name]))
            yield BackendError(
                mechanism=mechanism.name,
                backend=backend,
                tensor=tensor,
                error=errors[tensor].backend / errors[tensor].size,
                plain=errors[tensor].plain / errors[tensor].size,
                agrees=all(error.backend <= error.allowed(torch.float32) for error in errors.values()),
            )


def _rank(error: Errors) -> float:
    relative = error.backend / error.size
    return float("inf") if relative != relative else relative
