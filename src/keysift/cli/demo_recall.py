"""The demo: a Multiscreen and a Transformer of its size learn one-hop recall from the same rows, and both are asked at
1 to 64 times their training length."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from keysift.cli import eval as verbs
from keysift.cli import output
from keysift.cli.demo_chart import table_of, text_chart
from keysift.cli.demo_text import numbered
from keysift.cli.eval_output import write
from keysift.cli.gather import gather
from keysift.cli.measure import measure
from keysift.core.disk import write_whole
from keysift.core.errors import RangeError, TrainingError
from keysift.evaluate.measured import AS_TRAINED, Retrieval
from keysift.evaluate.tasks import RATIOS
from keysift.runs.layout import EVALS
from keysift.runs.summary import Summary
from keysift.sweep.drive import sweep
from keysift.train.demo import STEPS, recall_runs
from keysift.web.report_page import report_page

PAGE = "report.html"
DEPTHS, INSTANCES = (0.1, 0.5, 0.9), 24
BEYOND = {
    "multiscreen": verbs.Beyond(expand_windows=True),
    "transformer": verbs.Beyond(rope_factors=(4.0, 16.0, 64.0)),
}


def recall_demo(out: Path, *, steps: int | None, json: bool, named: bool) -> int:
    """The exit code. A demo that was interrupted resumes; one that is finished is kept, and a new one goes beside."""
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
    say: Callable[[str], None] = output.print_note
    configs = recall_runs(steps)
    say(
        f"1. A Multiscreen and a Transformer of its size learn to recall: {steps:,} steps of the same rows, in {folder}"
    )
    processes = min(2, os.cpu_count() or 1)
    outcomes = sweep(configs, folder, processes=processes)
    failed = [one for one in outcomes if one.said]
    if failed:
        raise TrainingError(f"{failed[0].name} failed: {failed[0].said}; to resume: {command}")
    made = {one.name: one.summary for one in outcomes if one.summary is not None}
    if any(one.state != "finished" for one in made.values()) or len(made) < len(configs):
        return _interrupted(command)
    trained = next(iter(configs.values())).context
    say(f"2. Both are asked for one needle among {trained:,} to {RATIOS[-1] * trained:,} tokens")
    records = [_ask(folder / name, beyond) for name, beyond in BEYOND.items()]
    page = folder / PAGE
    report = gather([folder / name for name in configs], title="Recall beyond the training length", command=command)
    summary = _summary(records, list(made.values()))
    write_whole(page, report_page(replace(report, summary=tuple(summary))))
    if json:
        output.print_json(tuple(records))
        return 0
    output.print_plain("")
    output.print_plain(text_chart(records))
    output.print_plain(table_of(records))
    output.print_plain("")
    output.print_plain("\n".join(summary))
    output.print_plain(f"\nThe whole story, with every number: {page.resolve().as_uri()}")
    return 0


def _ask(run: Path, beyond: verbs.Beyond) -> Retrieval:
    asked = verbs.Retrieval(model=str(run), task="recall", depths=DEPTHS, instances=INSTANCES, beyond=beyond)
    found = measure(asked)
    write(found, run / EVALS, figure=False)
    for more in (verbs.Windows(model=str(run), text="recall"), verbs.Relevance(model=str(run), text="recall")):
        write(measure(more), run / EVALS, figure=False)
    assert isinstance(found.record, Retrieval)
    return found.record


def _interrupted(command: str) -> int:
    output.print_note(f"stopped; everything so far is saved. To resume: {command}")
    return 130


def _summary(records: Sequence[Retrieval], runs: Sequence[Summary]) -> list[str]:
    """Five lines: what was matched, both models as trained, and both with what helps them beyond their length."""
    ours, theirs = records
    sizes = " and ".join(f"{one.parameters:,}" for one in runs)
    seen = runs[0].step * int(runs[0].settings.get("batch_tokens", 0))
    lines = [f"{sizes} parameters, the same {seen:,} tokens; a guess is right {ours.chance:.0%} of the time."]
    for name, record in (("Multiscreen", ours), ("Transformer", theirs)):
        shares = [record.over_depths(length, AS_TRAINED).accuracy for length in record.lengths]
        lines.append(f"{name}, as trained: {shares[0]:.0%} at its training length, {shares[-1]:.0%} at 64 times it.")
    for name, record in (
        ("Multiscreen with expanded windows", ours),
        ("Transformer with its best RoPE factor", theirs),
    ):
        cells = [record.over_depths(record.lengths[-1], setting) for setting in record.settings[1:]]
        best = max(cells, key=lambda cell: cell.right)
        factor = f" ({best.setting})" if "RoPE" in best.setting else ""
        lines.append(f"{name}: {best.accuracy:.0%} at 64 times{factor}.")
    return lines
