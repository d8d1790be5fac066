"""The measures behind `keysift eval`: each reads a model and a text, makes a record, and shows it."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn

from keysift.cli import eval as verbs
from keysift.cli import output
from keysift.core import jsons
from keysift.core.config import from_dict, to_dict
from keysift.core.disk import write_whole
from keysift.core.errors import RangeError
from keysift.core.live import Live
from keysift.core.shown import Words
from keysift.evaluate import losses, measured, tasks, texts, tiles
from keysift.evaluate import positions as by_position
from keysift.evaluate import retrieval as grids
from keysift.evaluate.subject import find_subject
from keysift.runs.text_model import TextModel
from keysift.web import figures

Rows = list[dict[str, Any]]


def loss(do: verbs.Loss) -> None:
    found, subject = find_subject(do.model)
    context = do.context or subject.trained_length or 1024
    stride = do.stride or max(1, context // 2)
    ids, text_bytes = texts.beginning(do.text, found.tokenizer, do.tokens)
    with _Progress(len(ids) - 1) as progress:
        each = losses.token_losses(found.model, ids, context=context, stride=stride, on_tokens=progress.at)
    nats, bits = losses.mean_and_bits(each, text_bytes)
    record = measured.TextLoss(
        subject=subject,
        text=do.text,
        tokens=len(each),
        bytes=text_bytes,
        nats=nats,
        bits_per_byte=bits,
        context=context,
        stride=stride,
    )
    rows = [
        {"token": i + 1, "id": int(token), "nats": float(x)}
        for i, (token, x) in enumerate(zip(ids[1:], each, strict=True))
    ]
    short = [{"tokens": record.tokens, "nats a token": f"{nats:.4f}", "bits a byte": f"{bits:.4f}"}]
    _show(do.output, "loss", record, rows, table=short, draw=None)


def positions(do: verbs.Positions) -> None:
    found, subject = find_subject(do.model)
    length = do.length or 16 * (subject.trained_length or 64)
    rows = by_position.stretches(texts.long_documents(do.text, found.tokenizer, length, do.documents), length)
    settings = grids.settings_of(do.beyond.rope_factors, expand_windows=do.beyond.expand_windows)
    with _Progress(len(settings) * len(rows)) as progress:
        each = by_position.losses_by_position(
            found.model, rows, settings=settings, on_row=lambda setting, row: progress.more(setting)
        )
    contexts = [2**n for n in range(4, length.bit_length()) if 2**n <= length]
    points = tuple(by_position.points(each, contexts))
    record = measured.LossByPosition(subject=subject, text=do.text, points=points)
    _show(do.output, "positions", record, [to_dict(point) for point in points], draw=figures.positions(record))


def retrieval(do: verbs.Retrieval) -> None:
    found, subject = find_subject(do.model)
    kinds = {"abcdigits": tasks.AbcDigits, "passkey": tasks.Passkey, "mqar": tasks.Mqar}
    task = kinds[do.task](found.tokenizer, seed=do.seed)
    settings = grids.settings_of(do.beyond.rope_factors, expand_windows=do.beyond.expand_windows)
    _fits(found, max(do.lengths, default=0))
    partial = None if do.output.out is None else do.output.out / f"{do.task}-cells.jsonl"
    done = [] if partial is None else list(_cells(partial, to_dict(subject)))
    with _Progress(len(do.lengths) * len(do.depths) * len(settings)) as progress:

        def keep(cell: measured.Cell) -> None:
            progress.more(f"{cell.length:,} tokens, depth {cell.depth:g}: {100 * cell.accuracy:.0f}%")
            if partial is not None:
                partial.parent.mkdir(parents=True, exist_ok=True)
                with partial.open("a") as file:
                    file.write(json.dumps({"subject": to_dict(subject), "cell": to_dict(cell)}) + "\n")

        cells = grids.grid(
            found.model,
            task,
            lengths=do.lengths,
            depths=do.depths,
            settings=settings,
            instances=do.instances,
            done=done,
            on_cell=keep,
        )
    record = measured.Retrieval(subject=subject, task=do.task, chance=task.chance, cells=tuple(cells))
    rows = [
        to_dict(cell) | {"accuracy": cell.accuracy, "low": cell.interval[0], "high": cell.interval[1]} for cell in cells
    ]
    _show(do.output, do.task, record, rows, draw=figures.retrieval(record))


def windows(do: verbs.Windows) -> None:
    found, subject = find_subject(do.model)
    ids, _ = texts.beginning(do.text, found.tokenizer, do.tokens)
    heads = tuple(tiles.heads(found.model, torch.from_numpy(ids)[None]))
    record = measured.Windows(subject=subject, text=do.text, tokens=len(ids), heads=heads)
    looks = any(head.window is not None for head in heads)
    _show(
        do.output, "windows", record, [to_dict(head) for head in heads], draw=figures.windows(record) if looks else None
    )


def _fits(found: TextModel, length: int) -> None:
    """Refuses a length whose cache alone would not fit in memory, before anything is computed."""
    if length < 1:
        raise RangeError(f"lengths must be at least 1 token, got {length or 'none'}")
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    config = found.model.config
    needed = 4 * 2 * config.depth * config.width * length
    if needed > free:
        raise RangeError(
            f"a context of {length:,} tokens needs about {needed / 2**30:.1f} GiB for its keys and values, and "
            f"{free / 2**30:.1f} GiB are free; ask for shorter lengths"
        )


def _cells(path: Path, subject: Mapping[str, Any]) -> Iterator[measured.Cell]:
    """Cells an earlier call finished for the same model; a line that was cut short is left out."""
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        try:
            told = jsons.loads(line)
            if told["subject"] == subject:
                yield from_dict(measured.Cell, told["cell"])
        except (ValueError, KeyError, TypeError):
            continue


class _Progress:
    """One bar for a measure."""

    def __init__(self, total: int) -> None:
        self.live = Live(BarColumn(), Words("{task.description}"), show=True, transient=True)
        self._total, self._done = total, 0
        if self.live.bars is not None:
            self._task = self.live.bars.add_task("starting", total=float(total))

    def at(self, done: int) -> None:
        self._say(done, f"{done:,} of {self._total:,} tokens")

    def more(self, text: str) -> None:
        self._say(self._done + 1, text)

    def _say(self, done: int, text: str) -> None:
        self._done = done
        if self.live.bars is not None:
            self.live.bars.update(self._task, completed=done, description=text)
        self.live.now_and_then(f"{done}/{self._total}  {text}")

    def __enter__(self) -> "_Progress":
        self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.live.__exit__(*error)


def _show(
    how: verbs.Output,
    name: str,
    record: Any,
    rows: Rows,
    *,
    draw: Callable[[Any], None] | None,
    table: Rows | None = None,
) -> None:
    if how.out is not None:
        how.out.mkdir(parents=True, exist_ok=True)
        write_whole(how.out / f"{name}.json", json.dumps(to_dict(record), indent=1) + "\n")
        write_whole(how.out / f"{name}.csv", _csv(rows))
        drawn = [] if draw is None else figures.write(draw, how.out / name)
        output.print_note(
            f"written: {', '.join(str(p) for p in (how.out / f'{name}.json', how.out / f'{name}.csv', *drawn))}"
        )
    if how.json:
        output.print_json(record)
    elif how.csv:
        output.print_plain(_csv(rows).rstrip("\n"))
    else:
        _table(record, rows if table is None else table)


def _csv(rows: Rows) -> str:
    names = list(rows[0]) if rows else []
    return (
        "\n".join([",".join(names), *(",".join("" if row[n] is None else str(row[n]) for n in names) for row in rows)])
        + "\n"
    )


def _table(record: Any, rows: Rows) -> None:
    subject = record.subject
    output.print_plain(f"{subject.name}: {subject.kind}, {subject.parameters:,} parameters")
    shown = output.table()
    for name in rows[0]:
        shown.add_column(name, justify="right")
    for row in rows:
        shown.add_row(*map(_word, row.values()))
    output.console().print(shown)


def _word(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)
