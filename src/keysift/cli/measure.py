"""The measures behind `keysift eval` and `keysift report`: each reads a model and a text and makes a record."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from keysift.cli import eval as verbs
from keysift.cli.command import spelled
from keysift.cli.eval_output import Measured
from keysift.cli.measure_runs import latency, scaling, stability
from keysift.cli.progress import Steps
from keysift.cli.retrieval_cells import Kept
from keysift.core.config import from_dict, to_dict
from keysift.core.provenance import Made
from keysift.evaluate import losses, measured, texts, tiles
from keysift.evaluate import positions as by_position
from keysift.evaluate import retrieval as grids
from keysift.evaluate.room import need_maps, need_room
from keysift.evaluate.subject import find_subject
from keysift.evaluate.tasks import find_task, lengths_of
from keysift.lens.maps import relevance_maps
from keysift.lens.ours import Ours
from keysift.runs import machine
from keysift.runs.layout import EVALS, holds_a_run
from keysift.runs.summary import summary
from keysift.web import figures

Making = Callable[[], Made]


def measure(do: verbs.Measure) -> Measured:
    command = spelled(f"eval {type(do).__name__.lower()}", do, without=("output",))
    return _MEASURES[type(do)](do, partial(machine.made, command, time.monotonic()))


def place(do: verbs.Measure) -> Path | None:
    """Where a record is kept if nothing is said: in the run that was measured."""
    model = getattr(do, "model", None)
    return Path(model) / EVALS if model is not None and holds_a_run(Path(model)) else None


def loss(do: verbs.Loss, making: Making) -> Measured:
    found, subject = find_subject(do.model)
    context = do.context or subject.trained_length or 1024
    stride = do.stride or max(1, context // 2)
    ids, text_bytes = texts.beginning(do.text, found.tokenizer, do.tokens)
    need_room(found.model, [context])
    with Steps(len(ids) - 1) as progress:
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
        made=making(),
    )
    rows = [
        {"token": i + 1, "id": int(token), "nats": float(x)}
        for i, (token, x) in enumerate(zip(ids[1:], each, strict=True))
    ]
    short = [{"tokens": record.tokens, "nats per token": f"{nats:.4f}", "bits per byte": f"{bits:.4f}"}]
    return Measured("loss", record, rows, about(subject), table=short)


def positions(do: verbs.Positions, making: Making) -> Measured:
    found, subject = find_subject(do.model)
    length = do.length or 16 * (subject.trained_length or 64)
    settings = grids.settings_of(do.beyond.rope_factors, expand_windows=do.beyond.expand_windows)
    need_room(found.model, [length], settings.values())
    rows = by_position.stretches(texts.long_documents(do.text, found.tokenizer, length, do.documents), length)
    with Steps(len(settings) * len(rows)) as progress:
        each = by_position.losses_by_position(
            found.model, rows, settings=settings, on_row=lambda setting, row: progress.more(setting)
        )
    contexts = [2**n for n in range(4, length.bit_length()) if 2**n <= length]
    points = tuple(by_position.points(each, contexts))
    record = measured.LossByPosition(subject=subject, text=do.text, points=points, made=making())
    return Measured(
        "positions", record, [to_dict(point) for point in points], about(subject), draw=figures.positions(record)
    )


def retrieval(do: verbs.Retrieval, making: Making) -> Measured:
    found, subject = find_subject(do.model)
    trained_on = summary(Path(do.model)).data if do.task == "recall" and holds_a_run(Path(do.model)) else ""
    task = find_task(do.task, found, seed=do.seed, trained_on=trained_on)
    lengths = do.lengths or lengths_of(do.task, subject.trained_length)
    settings = grids.settings_of(do.beyond.rope_factors, expand_windows=do.beyond.expand_windows)
    need_room(found.model, lengths, settings.values())
    kept = Kept(do.output.out or place(do), do.task, {"subject": to_dict(subject), "seed": do.seed})
    with Steps(len(lengths) * len(do.depths) * len(settings)) as progress:

        def keep(cell: measured.Cell) -> None:
            progress.more(f"{cell.length:,} tokens, depth {cell.depth:g}: {100 * cell.accuracy:.0f}%")
            kept.add(cell)

        cells = grids.grid(
            found.model,
            task,
            lengths=lengths,
            depths=do.depths,
            settings=settings,
            instances=do.instances,
            done=kept.cells(),
            on_cell=keep,
        )
    record = measured.Retrieval(subject=subject, task=do.task, chance=task.chance, cells=tuple(cells), made=making())
    rows = [
        to_dict(cell) | {"accuracy": cell.accuracy, "low": cell.interval[0], "high": cell.interval[1]} for cell in cells
    ]
    return Measured(do.task, record, rows, about(subject), draw=figures.retrieval(record))


def windows(do: verbs.Windows, making: Making) -> Measured:
    found, subject = find_subject(do.model)
    need_maps(found.model, do.tokens)
    ids, _ = texts.beginning(do.text, found.tokenizer, do.tokens)
    heads = tuple(tiles.heads(found.model, torch.from_numpy(ids)[None]))
    record = measured.Windows(subject=subject, text=do.text, tokens=len(ids), heads=heads, made=making())
    looks = any(head.window is not None for head in heads)
    return Measured(
        "windows",
        record,
        [to_dict(head) for head in heads],
        about(subject),
        draw=figures.windows(record) if looks else None,
    )


def relevance(do: verbs.Relevance, making: Making) -> Measured:
    found, subject = find_subject(do.model)
    ids, _ = texts.beginning(do.text, found.tokenizer, do.tokens)
    maps = relevance_maps(Ours(found.model, found.tokenizer, subject.name), ids.tolist())
    record = from_dict(
        measured.Relevance, maps | {"subject": to_dict(subject), "text": do.text, "made": to_dict(making())}
    )
    rows = [
        {"head": head.name, "query": query, "key": key, "weight": weight}
        for layer in record.layers
        for head in layer.heads
        for query, row in enumerate(head.weights)
        for key, weight in enumerate(row)
        if weight != 0
    ]
    short = [to_dict(one) for one in measured.map_figures(record)]
    return Measured("relevance", record, rows, about(subject), table=short, draw=figures.relevance(record))


def about(subject: measured.Subject) -> str:
    return f"{subject.name}: {subject.kind}, {subject.parameters:,} parameters"


_MEASURES: dict[type[Any], Callable[[Any, Making], Measured]] = {
    verbs.Loss: loss,
    verbs.Positions: positions,
    verbs.Retrieval: retrieval,
    verbs.Windows: windows,
    verbs.Relevance: relevance,
    verbs.Stability: stability,
    verbs.Scaling: scaling,
    verbs.Latency: latency,
}
