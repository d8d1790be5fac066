"""Peak memory of whole models: a training step, and the longest forward pass. Each runs in a process of its own."""

from dataclasses import replace

from keysift.bench import peak_memory
from keysift.bench.collector import Collector
from keysift.bench.contestants import build_cases
from keysift.bench.subprocess_call import run_in_subprocess
from keysift.bench.training_step import random_tokens, step

TRAINED = ("plain", "transformer", "windowed")
READ = ("plain", "windowed")  # softmax over every key would take minutes at the longest length


def measure_memory(results: Collector, psi: int, forward: int, tokens: int, train_tokens: int) -> None:
    """Add the peak memory of each model to its rows of a training step of `tokens` and a forward pass of `forward`."""
    if not peak_memory.can_measure():
        results.notes.append("memory: not measured, the system does not report resident memory")
        return
    names = {key: case.name for key, case in build_cases(psi).items()}
    batch = max(1, train_tokens // tokens)
    for step_name, keys, length, rows in (
        ("training step", TRAINED, tokens, batch),
        ("forward", READ, forward, 1),
    ):
        for key in keys:
            megabytes = results.measure_once(
                f"memory, {step_name}, T = {length:,}, {names[key]}",
                lambda: run_in_subprocess(peak_of, psi, key, length, rows, step_name == "training step"),  # noqa: B023
            )
            for place, row in enumerate(results.rows):
                if (row.what, row.step, row.tokens) == (names[key], step_name, length) and row.extra_mb is None:
                    results.rows[place] = replace(row, extra_mb=megabytes)
                    break


def peak_of(psi: int, key: str, length: int, batch: int, training: bool) -> float:
    """Peak memory in megabytes of a step of a model, after a small step has loaded libraries and the optimizer."""
    case = build_cases(psi)[key]
    if training:
        text = random_tokens(batch, length + 1)
        run = step(case.model, text)
        run()
        return peak_memory.peak_mb(run, output_bytes=0)
    case.last_logits(random_tokens(1, 64))
    text = random_tokens(1, length)
    return peak_memory.peak_mb(lambda: case.last_logits(text), output_bytes=0)
