"""Sections of a report about models: retrieval, loss by position, loss on a text, windows, relevance."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from keysift.evaluate.measured import (
    AS_TRAINED,
    LossByPosition,
    Relevance,
    Retrieval,
    TextLoss,
    Windows,
    map_figures,
)
from keysift.web.chart import Axis, Line, chart
from keysift.web.heat import Square, heat_map, relevance_map
from keysift.web.number import length, number
from keysift.web.page import safe
from keysift.web.report_parts import Section, decimal, figure, missing, percent, side_by_side
from keysift.web.report_record import Report, ReportRun

R = TypeVar("R", Retrieval, LossByPosition, TextLoss, Windows, Relevance)
MOST_TOKENS = 128  # of a relevance map on the page


def found(report: Report, kind: type[R]) -> Iterator[tuple[ReportRun, R]]:
    for one in report.runs:
        for record in one.records:
            if isinstance(record, kind):
                yield one, record


def retrieval(report: Report) -> Section:
    tasks: dict[str, list[tuple[ReportRun, Retrieval]]] = {}
    for one, record in found(report, Retrieval):
        tasks.setdefault(record.task, []).append((one, record))
    body = ""
    for task, records in tasks.items():
        body += f"<h3>{safe(task)}: accuracy by context length</h3>\n{_by_length(records)}"
        body += side_by_side(_grid(one, record) for one, record in records)
    return Section("retrieval", "Retrieval", body + lacking(report, Retrieval, "retrieval"))


def _by_length(records: list[tuple[ReportRun, Retrieval]]) -> str:
    lines, rows = [], []
    for one, record in records:
        for setting in record.settings:
            cells = [record.over_depths(n, setting) for n in record.lengths]
            points = [(float(cell.length), cell.accuracy) for cell in cells]
            lines.append(Line(_series(one.name, setting), points, bars=[cell.interval for cell in cells]))
            rows += [
                (one.name, setting, f"{c.length:,}", percent(c.accuracy), *map(percent, c.interval), str(c.asked))
                for c in cells
            ]
    # The first lines are the widest, so that they are seen where later ones lie on top.
    lines = [replace(line, width=2 + 0.7 * (len(lines) - 1 - place)) for place, line in enumerate(lines)]
    first = records[0][1]
    trained = first.subject.trained_length
    drawing = chart(
        "accuracy by context length",
        lines,
        x=Axis("context length, tokens", log=True, show=length, base=2.0),
        y=Axis("share of answers that were right", show=lambda v: f"{100 * v:g}%", ends=(0.0, 1.0)),
        level=(first.chance, f"chance, {number(100 * first.chance)}%") if first.chance > 0.01 else None,
        limit=None if trained is None else (float(trained), "training length"),
    )
    heads = ("run", "setting", "length", "right", "low", "high", "asked")
    caption = "All depths together; bars are Wilson's 95% intervals."
    return figure(drawing, caption, (record.made.command for _, record in records), heads, rows)


def _series(name: str, setting: str) -> str:
    return name if setting == AS_TRAINED else f"{name}, {setting}"


def _grid(one: ReportRun, record: Retrieval) -> str:
    squares = {}
    for depth in record.depths:
        for tokens in record.lengths:
            cell = record.best(tokens, depth)
            note = "" if cell.setting == AS_TRAINED else cell.setting
            squares[f"{depth:g}", f"{tokens:,}"] = Square(cell.accuracy, note)
    trained = record.subject.trained_length
    drawing = heat_map(
        f"{one.name}: {record.task} by depth and context length",
        squares,
        rows=[f"{depth:g}" for depth in record.depths],
        columns=[f"{tokens:,}" for tokens in record.lengths],
        labels=("depth", "context length, tokens"),
        limit=None if trained is None else sum(tokens <= trained for tokens in record.lengths),
    )
    caption = f"{one.name}: the best setting of each cell, named where it is not the model as trained; "
    caption += "right of the line is beyond the training length."
    heads = ("length", "depth", "setting", "right", "asked", "share", "low", "high")
    rows = (
        (
            f"{c.length:,}",
            f"{c.depth:g}",
            c.setting,
            str(c.right),
            str(c.asked),
            percent(c.accuracy),
            *map(percent, c.interval),
        )
        for c in record.cells
    )
    return figure(drawing, caption, [record.made.command], heads, rows)


def positions(report: Report) -> Section:
    records = list(found(report, LossByPosition))
    hint = lacking(report, LossByPosition, "positions")
    if not records:
        return Section("positions", "Loss by position", hint)
    lines, rows = [], []
    for one, record in records:
        for setting in dict.fromkeys(point.setting for point in record.points):
            own = [point for point in record.points if point.setting == setting]
            points = [(float(point.context), point.nats) for point in own]
            bars = [(point.nats - point.error, point.nats + point.error) for point in own]
            lines.append(Line(_series(one.name, setting), points, bars=bars))
            rows += [
                (one.name, setting, f"{p.context:,}", decimal(p.nats), decimal(p.error), str(p.documents)) for p in own
            ]
    trained = records[0][1].subject.trained_length
    drawing = chart(
        "loss by tokens before the predicted one",
        lines,
        x=Axis("tokens before the predicted one", log=True, show=length, base=2.0),
        y=Axis("nats per token"),
        limit=None if trained is None else (float(trained), "training length"),
    )
    heads = ("run", "setting", "context", "nats per token", "standard error", "documents")
    caption = "Mean over positions within 10% of the context; bars are standard errors over documents."
    commands = (record.made.command for _, record in records)
    return Section("positions", "Loss by position", figure(drawing, caption, commands, heads, rows) + hint)


def texts(report: Report) -> Section:
    records = list(found(report, TextLoss))
    hint = lacking(report, TextLoss, "loss")
    if not records:
        return Section("texts", "Loss on a text", hint)
    lines = [
        Line(one.name, [(float(at), record.bits_per_byte)], joined=False) for at, (one, record) in enumerate(records, 1)
    ]
    drawing = chart(
        "bits per byte of each run",
        lines,
        x=Axis("run, in the order of the table", marks=range(1, len(records) + 1)),
        y=Axis("bits per byte"),
    )
    heads = ("run", "text", "tokens", "nats per token", "bits per byte", "context", "stride")
    rows = (
        (one.name, r.text, f"{r.tokens:,}", decimal(r.nats), decimal(r.bits_per_byte), str(r.context), str(r.stride))
        for one, r in records
    )
    caption = "Bits per byte do not depend on the vocabulary."
    body = figure(drawing, caption, (record.made.command for _, record in records), heads, rows)
    return Section("texts", "Loss on a text", body + hint)


def windows(report: Report) -> Section:
    body = "".join(_windows(one, record) for one, record in found(report, Windows))
    return Section("windows", "Windows and acceptance", body + lacking(report, Windows, "windows"))


def _windows(one: ReportRun, record: Windows) -> str:
    looking = [(float(head.layer), head.window) for head in record.heads if head.window is not None]
    accepting = [(float(head.layer), head.acceptance) for head in record.heads if head.acceptance is not None]
    layers = sorted({head.layer for head in record.heads})
    trained = record.subject.trained_length
    drawings = ""
    if looking:
        drawings += chart(
            f"{one.name}: learned window of each head",
            [Line("window", looking, joined=False)],
            x=Axis("layer", marks=layers),
            y=Axis("window, tokens", log=True),
            level=None if trained is None else (float(trained), f"training length {trained}"),
        )
    if accepting:
        drawings += chart(
            f"{one.name}: learned acceptance width of each head",
            [Line("acceptance width", accepting, joined=False)],
            x=Axis("layer", marks=layers),
            y=Axis("acceptance width r", ends=(0.0, 1.0)),
        )
    if not drawings:
        shares = [(float(head.layer), head.accepted) for head in record.heads]
        drawings = chart(
            f"{one.name}: share of keys each head uses",
            [Line("share of keys used", shares, joined=False)],
            x=Axis("layer", marks=layers),
            y=Axis("share of visible keys with a weight", ends=(0.0, 1.0)),
        )
    heads = ("layer", "head", "window", "acceptance", "accepted", "nothing accepted", "mean sum of weights")
    rows = (
        (
            str(h.layer),
            str(h.head),
            "" if h.window is None else number(h.window),
            "" if h.acceptance is None else number(h.acceptance),
            percent(h.accepted),
            percent(h.nothing),
            number(h.mass),
        )
        for h in record.heads
    )
    caption = f"{one.name} on {record.tokens} tokens of {record.text}: a dot for each head."
    drawing = f"<div class='beside'>{drawings}</div>"
    return f"<h3>{safe(one.name)}</h3>\n" + figure(drawing, caption, [record.made.command], heads, rows)


def relevance(report: Report) -> Section:
    body = "".join(_relevance(one, record) for one, record in found(report, Relevance))
    return Section("relevance", "Relevance maps", body + lacking(report, Relevance, "relevance"))


def _relevance(one: ReportRun, record: Relevance) -> str:
    parts = []
    for layer in record.layers:
        for head in layer.heads:
            short = head.name.removeprefix("layers.").replace(".heads.", ", head ")
            cut = [row[:MOST_TOKENS] for row in head.weights[:MOST_TOKENS]]
            drawing = relevance_map(f"{one.name}, layer {short}: who reads whom", cut)
            parts.append(f"<div class='map'>{drawing}<span class='hint'>layer {safe(short)}</span></div>")
    tokens = record.tokens
    spelled = " ".join(f"<span>{safe(piece)}</span>" for piece in tokens[:MOST_TOKENS])
    rows = (
        (
            f.head,
            percent(f.accepted),
            number(f.mass),
            number(f.most),
            f"{f.query} reads {f.key}",
            f"{tokens[f.query]!r} reads {tokens[f.key]!r}",
        )
        for f in map_figures(record)
    )
    heads = ("head", "accepted", "mean sum of weights", "largest weight", "where", "tokens")
    caption = f"{one.name} on {record.text}: queries from top to bottom, keys from left to right, each map to its own "
    caption += "largest weight. What is blank has weight zero. Every weight stands in the record, evals/relevance.json."
    drawing = f"<div class='maps'>{''.join(parts)}</div>\n<p class='tokens'>{spelled}</p>"
    return f"<h3>{safe(one.name)}</h3>\n" + figure(drawing, caption, [record.made.command], heads, rows)


def lacking(report: Report, kind: type[R], verb: str) -> str:
    """A line for the runs that have no such record: how to make the first of them."""
    have = {one.name for one, _ in found(report, kind)}
    able = [one for one in report.runs if one.name not in have]
    if kind in (TextLoss, LossByPosition):
        able = [one for one in able if not _recalls(one)]
        if not able and not have:
            return missing("These runs read no text.")
    if not able:
        return ""
    flags = {"retrieval": " --task recall", "windows": " --text recall", "relevance": " --text recall"}
    own = flags.get(verb, "") if _recalls(able[0]) else ""
    command = f"keysift eval {verb} {shlex.quote(able[0].summary.path)}{own}"
    return missing(f"No record of {', '.join(one.name for one in able)}. Make one:", command)


def _recalls(one: ReportRun) -> bool:
    return one.summary.data.partition(":")[0] == "recall"
