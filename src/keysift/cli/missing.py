"""The cheap measures that runs still lack, made one after the other; each is kept as soon as it is done."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from keysift.cli import eval as verbs
from keysift.cli import output
from keysift.cli.eval_output import write
from keysift.cli.measure import measure, place
from keysift.core.errors import KeysiftError
from keysift.evaluate.measured import LossByPosition, Relevance, Retrieval, TextLoss, Windows
from keysift.evaluate.records import read_records
from keysift.evaluate.tasks import RATIOS
from keysift.runs.layout import EVALS
from keysift.runs.summary import Summary, summary


def measure_missing(paths: Sequence[Path]) -> list[str]:
    """A line for each measure that could not be made. An interrupted call has kept what it finished."""
    notes = []
    for path in paths:
        about = summary(path)
        have = {type(one) for one in read_records(path / EVALS)[0] if one.subject.step == about.saved}
        for kind, do in cheap(about):
            if kind in have:
                continue
            name = type(do).__name__.lower()
            output.print_note(f"{path}: {name}")
            try:
                write(measure(do), place(do) or path / EVALS, figure=False)
            except KeysiftError as error:
                notes.append(f"{path}: {name} was not measured: {error}")
    return notes


def cheap(about: Summary) -> Iterator[tuple[type, verbs.Measure]]:
    """What takes seconds on a small model, by the record it makes."""
    text = about.data
    if text.partition(":")[0] == "recall":
        beyond = verbs.Beyond(
            expand_windows=about.arch == "multiscreen",
            rope_factors=tuple(map(float, RATIOS[1:])) if about.settings.get("position") == "rope" else (),
        )
        yield Retrieval, verbs.Retrieval(model=about.path, task="recall", beyond=beyond)
    else:
        yield TextLoss, verbs.Loss(model=about.path, text=text, tokens=16_384)
        beyond = verbs.Beyond(
            expand_windows=about.arch == "multiscreen",
            rope_factors=(4.0, 16.0) if about.settings.get("position") == "rope" else (),
        )
        yield LossByPosition, verbs.Positions(model=about.path, text=text, documents=4, beyond=beyond)
    yield Windows, verbs.Windows(model=about.path, text=text)
    yield Relevance, verbs.Relevance(model=about.path, text=text)
