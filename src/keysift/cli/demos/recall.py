"""`keysift demo`: recall beyond the training length.

A Multiscreen and a Transformer of the same size learn one-hop recall from the same rows. Both are evaluated at 1 to 64
times their training length.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keysift.cli.demos.text import numbered
from keysift.cli.terminal import output
from keysift.cli.terminal.recall_chart import accuracy_table, text_chart
from keysift.core.disk import write_atomic
from keysift.core.errors import RangeError, TrainingError
from keysift.evaluate.measured_model import open_measured_model
from keysift.evaluate.retrieval_tasks import RATIOS
from keysift.records.evaluation import AS_TRAINED, Retrieval, write_record
from keysift.records.runs import RunSummary
from keysift.runs.layout import EVALS
from keysift.runs.summary import summary as read_summary
from keysift.sweep.drive import sweep
from keysift.sweep.evaluate_runs import cheap_evaluations, measure_recall
from keysift.sweep.report import gather_report
from keysift.train.demo import STEPS, recall_runs
from keysift.web.report.page import report_page

PAGE = "report.html"
DEPTHS, INSTANCES = (0.1, 0.5, 0.9), 24
ROPE_FACTORS: dict[str, tuple[float, ...]] = {"multiscreen": (), "transformer": (4.0, 16.0, 64.0)}


def recall_demo(out: Path, *, steps: int | None, json: bool, named: bool) -> int:
    """Run the demo, or resume an interrupted one; a finished one is kept. Returns the exit code."""
    if steps is not None and steps < 1:
        raise RangeError(f"--steps must be at least 1, got {steps}")
    folder = next(path for path in numbered(out) if not (path / PAGE).is_file())
    command = "keysift demo" + (f" --out {shlex.quote(str(folder))}" if named or folder != out else "")
    command += f" --steps {steps}" if steps is not None else ""
    try:
        return _demo(folder, steps or STEPS, command, json=json)
    except KeyboardInterrupt:
        return _interrupted(command)


def _demo(folder: Path, steps: int, command: str, *, json: bool) -> int:
    configs = recall_runs(steps)
    output.print_note(
        f"1. Training a Multiscreen and a Transformer of the same size: {steps:,} steps on the same rows, in {folder}"
    )
    processes = min(2, os.cpu_count() or 1)
    outcomes = sweep(configs, folder, processes=processes)
    failed = [outcome for outcome in outcomes if outcome.error]
    if failed:
        raise TrainingError(f"{failed[0].name} failed: {failed[0].error}; to resume: {command}")
    summaries = {outcome.name: outcome.summary for outcome in outcomes if outcome.summary is not None}
    if any(run.state != "finished" for run in summaries.values()) or len(summaries) < len(configs):
        return _interrupted(command)
    trained = next(iter(configs.values())).context
    output.print_note(f"2. Measuring recall at {trained:,} to {RATIOS[-1] * trained:,} tokens")
    records = [_evaluate(folder / name, factors) for name, factors in ROPE_FACTORS.items()]
    page = folder / PAGE
    report = gather_report(
        [folder / name for name in configs], title="Recall beyond the training length", command=command
    )
    summary = _summary(records, list(summaries.values()))
    write_atomic(page, report_page(replace(report, summary=tuple(summary))))
    if json:
        output.print_json(tuple(records))
        return 0
    output.print_plain("")
    output.print_plain(text_chart(records))
    output.print_plain(accuracy_table(records))
    output.print_plain("")
    output.print_plain("\n".join(summary))
    output.print_plain(f"\nReport: {page.resolve().as_uri()}")
    return 0


def _evaluate(run: Path, rope_factors: Sequence[float]) -> Retrieval:
    """Measure recall, windows and relevance maps of a run, and store the records in it."""
    measured = open_measured_model(str(run))
    recall = measure_recall(measured, rope_factors=rope_factors, depths=DEPTHS, instances=INSTANCES)
    write_record(recall, run / EVALS, "recall")
    for evaluation in cheap_evaluations(read_summary(run)):
        if evaluation.record is not Retrieval:
            write_record(evaluation.measure(measured), run / EVALS, evaluation.name)
    return recall


def _interrupted(command: str) -> int:
    output.print_note(f"interrupted; progress is saved. To resume: {command}")
    return 130


def _summary(records: Sequence[Retrieval], runs: Sequence[RunSummary]) -> list[str]:
    """Five lines: sizes and tokens, both models as trained, and both with their settings for longer texts."""
    ours, theirs = records
    sizes = " and ".join(f"{run.parameters:,}" for run in runs)
    tokens = runs[0].step * int(runs[0].settings.get("batch_tokens", 0))
    lines = [f"{sizes} parameters, the same {tokens:,} tokens; chance is {ours.chance:.0%}."]
    for name, record in (("Multiscreen", ours), ("Transformer", theirs)):
        shares = [record.over_depths(length, AS_TRAINED).accuracy for length in record.lengths]
        lines.append(
            f"{name}, as trained: {shares[0]:.0%} at the training length, {shares[-1]:.0%} at 64 times the length."
        )
    for name, record in (
        ("Multiscreen with expanded windows", ours),
        ("Transformer with its best RoPE factor", theirs),
    ):
        cells = [record.over_depths(record.lengths[-1], setting) for setting in record.settings[1:]]
        best = max(cells, key=lambda cell: cell.correct)
        factor = f" ({best.setting})" if "RoPE" in best.setting else ""
        lines.append(f"{name}: {best.accuracy:.0%} at 64 times the length{factor}.")
    return lines
