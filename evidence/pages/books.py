"""The page of the text models: what they read, how well they predict books they were not trained on, and a sample.

From the files that evidence/books/run.py writes.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from evidence.records import RunRecord, read_records
from evidence.study import ROOT
from keysift.core.config import load
from keysift.core.markdown import table_head, table_row
from keysift.records.evaluation import LossByPosition, TextLoss
from keysift.web.shared.chart import Axis, Line, chart, svg_file

FOLDER = "books"
INTRODUCTION = """# Text models trained on books

Models trained on the bytes of six public-domain books, with one seed and one learning rate each. They are in
`checkpoints/`, in fp16, to be looked at and searched in; they decide no claim. Two books were held out.

```sh
keysift generate checkpoints/books-multiscreen --prompt "It was"
```
"""


def render(root: Path = ROOT) -> dict[str, str]:
    """The page and its figures, relative to the folder of studies; empty if no model has been trained."""
    folder = root / FOLDER
    records = read_records(folder / "runs.jsonl")
    if not records:
        return {}
    losses = {name: load(TextLoss, folder / f"{name}-loss.json") for name in records}
    positions = {name: load(LossByPosition, folder / f"{name}-positions.json") for name in records}
    lines = [INTRODUCTION, "## Held-out books", "", *_table(records, losses), ""]
    lines += ["## Loss by position", "", "![Loss by position on held-out books](positions.svg)", ""]
    lines += [*_positions(positions), "", "## Training", "", "![Training loss](training.svg)", ""]
    lines += ["## Samples", "", *(line for name in records for line in _sample(name, folder / f"{name}.txt"))]
    lines += ["## Books", "", *_books(folder / "books.toml"), "", *_command()]
    figures = {"positions.svg": _position_figure(positions), "training.svg": _training_figure(records)}
    return {f"{FOLDER}/{name}": text for name, text in {"README.md": "\n".join(lines) + "\n", **figures}.items()}


def _table(records: dict[str, RunRecord], losses: dict[str, TextLoss]) -> list[str]:
    titles = ("model", "parameters", "training tokens", "learning rate", "minutes", "bits per byte", "bytes scored")
    lines = table_head(*titles)
    for name, record in records.items():
        loss = losses[name]
        lines.append(
            table_row(
                name,
                f"{record.parameters:,}",
                f"{record.tokens:,}",
                f"{record.settings['lr']:g}",
                f"{record.seconds / 60:.0f}",
                f"{loss.bits_per_byte:.4f}",
                f"{loss.bytes:,}",
            )
        )
    cpus = ", ".join(sorted({session["cpu"] for record in records.values() for session in record.sessions}))
    first = next(iter(losses.values()))
    note = (
        f"Bits per byte over chunks of {first.context:,} bytes that overlap by half. Minutes of training with "
        f"one thread of an {cpus}, beside other programs: not a benchmark."
    )
    return [*lines, "", note]


def _positions(records: dict[str, LossByPosition]) -> list[str]:
    contexts = sorted({point.context for record in records.values() for point in record.points})
    lines = table_head("model", "setting", *(f"{context:,} before" for context in contexts))
    for name, record in records.items():
        for setting in dict.fromkeys(point.setting for point in record.points):
            found = {p.context: p for p in record.points if p.setting == setting}
            cells = [f"{found[c].nats:.3f} ± {found[c].error:.3f}" if c in found else "" for c in contexts]
            lines.append(table_row(name, setting, *cells))
    documents = max(point.documents for record in records.values() for point in record.points)
    return [*lines, "", f"Nats per byte, mean and standard error over {documents} pieces of the held-out books."]


def _position_figure(records: dict[str, LossByPosition]) -> str:
    lines = []
    for name, record in records.items():
        for setting in dict.fromkeys(point.setting for point in record.points):
            points = [point for point in record.points if point.setting == setting]
            bars = [(p.nats - p.error, p.nats + p.error) for p in points]
            lines.append(Line(f"{name}, {setting}", [(p.context, p.nats) for p in points], bars=bars))
    x, y = Axis("bytes before the prediction", log=True, base=2), Axis("nats per byte")
    return svg_file(chart("loss by position", lines, x=x, y=y))


def _training_figure(records: dict[str, RunRecord]) -> str:
    lines = []
    for name, record in records.items():
        scale = int(record.settings["batch_tokens"]) / 1e6
        for curve, points in (("training", record.curves["loss"]), ("validation", record.validations)):
            lines.append(Line(f"{name}, {curve}", [(step * scale, loss) for step, loss in points if step > 64]))
    return svg_file(chart("loss by tokens", lines, x=Axis("million tokens"), y=Axis("nats per byte")))


def _sample(name: str, path: Path) -> list[str]:
    return [f'{name}, from the prompt "It was", seed 0:', "", "```text", path.read_text().strip(), "```", ""]


def _books(path: Path) -> list[str]:
    parts = tomllib.loads(path.read_text())
    lines = table_head("book", "used for", "bytes", "SHA-256")
    for part, use in (("train", "training"), ("held_out", "evaluation")):
        for book in parts[part].values():
            lines.append(table_row(book["title"], use, f"{book['bytes']:,}", f"`{book['sha256']}`"))
    note = "Editions of Project Gutenberg with their headers cut, not included here. Training leaves 5% for validation."
    return [*lines, "", note]


def _command() -> Sequence[str]:
    return ("```sh", "python -m evidence.books.run FOLDER   # trains what is not trained and measures it", "```")
