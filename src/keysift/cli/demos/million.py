"""`keysift demo --million`: one needle in texts of up to a million tokens.

A Multiscreen answers questions about letters that occurred once in a text. Exact search refuses nearly all keys without
reading them. A Transformer of the same size answers the same questions as far as it can read in reasonable time.
"""

from collections.abc import Sequence
from pathlib import Path

from keysift.cli.terminal import output
from keysift.cli.terminal.long_recall_chart import long_chart, long_summary
from keysift.cli.terminal.progress import ProgressBar
from keysift.core.errors import DataError
from keysift.evaluate.long_recall import LENGTHS, QUESTIONS, measure_long_recall
from keysift.evaluate.measured_model import MeasuredModel, open_measured_model
from keysift.records.long_recall import LongCell, LongRecall

MODELS = ("checkpoints/needle-multiscreen", "checkpoints/one-hop-transformer")
TRANSFORMER_LENGTH = 2**14  # its first layer reads in quadratic time


def million_demo(models: Sequence[str], lengths: Sequence[int], questions: int | None, *, json: bool) -> int:
    """Measure each model and print what it answered. Returns the exit code; 130 if the demo was interrupted."""
    names = tuple(models) or MODELS
    for name in names:
        if not Path(name).is_dir():
            raise DataError(
                f"there is no model at {name}; run the demo in a clone of the repository, or train one with "
                f"keysift train --config recipes/needle.toml and give it with --models"
            )
    opened = [open_measured_model(name) for name in names]
    records: list[LongRecall] = []
    finished: list[LongCell] = []
    try:
        for measured in opened:
            finished = []
            records.append(_measure(measured, lengths or LENGTHS, questions or QUESTIONS, finished, quiet=json))
    except KeyboardInterrupt:
        if finished:
            output.print_note(f"interrupted; measured of {opened[len(records)].subject.name}:")
            output.print_plain("\n".join(map(_line, finished)))
        else:
            output.print_note("interrupted; nothing was measured")
        return 130
    if json:
        output.print_json(tuple(records))
        return 0
    output.print_plain(long_chart(records))
    output.print_plain("")
    output.print_plain("\n".join(long_summary(records)))
    return 0


def _measure(
    measured: MeasuredModel, lengths: Sequence[int], questions: int, finished: list[LongCell], *, quiet: bool
) -> LongRecall:
    kind = measured.subject.kind
    if kind == "transformer":
        lengths = [length for length in lengths if length <= TRANSFORMER_LENGTH] or [min(lengths)]
    flags = ["--models", measured.subject.name, "--lengths", *map(str, lengths), "--questions", str(questions)]
    with ProgressBar() as progress:

        def on_answer(length: int, setting: str, done: int, total: int) -> None:
            progress.update(f"{kind}, {setting}, {length:,} tokens", done, total)

        def on_cell(cell: LongCell) -> None:
            finished.append(cell)
            if not quiet:
                output.print_note(f"{kind}: {_line(cell)}")

        return measure_long_recall(
            measured,
            lengths=lengths,
            questions=questions,
            command=" ".join(["keysift demo --million", *flags, "--json"]),
            on_answer=on_answer,
            on_cell=on_cell,
        )


def _line(cell: LongCell) -> str:
    keys = ""
    if cell.in_window is not None and cell.read is not None and cell.accepted is not None:
        keys = f"; of {cell.in_window:,.0f} keys {cell.read:,.0f} read, {cell.accepted:,.0f} accepted"
    return (
        f"{cell.length:,} tokens, {cell.setting}: {cell.correct} of {cell.total} correct, "
        f"read in {cell.read_seconds:.3g} s, {1000 * cell.answer_seconds:.3g} ms an answer{keys}"
    )
