"""Report sections about evaluations: retrieval, loss by position, loss on a text, windows and relevance."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from keysift.core.number import length, number
from keysift.records.evaluation import (
    AS_TRAINED,
    LossByPosition,
    RelevanceMaps,
    Retrieval,
    TextLoss,
    Windows,
    pooled,
    summarize_maps,
)
from keysift.records.report import Report, ReportRun
from keysift.web.report.parts import Section, command_block, decimal, figure, missing_hint, percent, side_by_side
from keysift.web.report.series import Content, mean_points
from keysift.web.shared.chart import Axis, Line, chart
from keysift.web.shared.heat_map import Cell, heat_map, relevance_map
from keysift.web.shared.page import safe, safe_token, table

R = TypeVar("R", Retrieval, LossByPosition, TextLoss, Windows, RelevanceMaps)
MAX_MAP_TOKENS = 128  # larger relevance maps are cropped on the page


def records_of(report: Report, kind: type[R]) -> Iterator[tuple[ReportRun, R]]:
    for run in report.runs:
        for record in run.records:
            if isinstance(record, kind):
                yield run, record


def retrieval(content: Content) -> Section:
    tasks: dict[str, list[tuple[ReportRun, Retrieval]]] = {}
    for run, record in records_of(content.report, Retrieval):
        tasks.setdefault(record.task, []).append((run, record))
    body = ""
    for task, records in tasks.items():
        body += f"<h3>{safe(task)}: accuracy by context length</h3>\n{_by_length(content, records)}"
        body += side_by_side(_grid(group, members) for group, members in _by_group(records).items())
    return Section("retrieval", "Retrieval", body + missing_records(content.report, Retrieval, "retrieval"))


def _by_group(records: Iterable[tuple[ReportRun, R]]) -> dict[str, list[R]]:
    """Records of runs that differ in their seed only, by the label of the group."""
    groups: dict[str, list[R]] = {}
    for run, record in records:
        groups.setdefault(run.label.group, []).append(record)
    return groups


def _by_length(content: Content, records: list[tuple[ReportRun, Retrieval]]) -> str:
    lines, rows = [], []
    for group, members in _by_group(records).items():
        for index, setting in enumerate(members[0].settings):
            cells = [[m.over_depths(n, setting) for m in members if setting in m.settings] for n in members[0].lengths]
            style, name = content.palette.group(group, index), _series(group, setting)
            if len(members) > 1:
                points, bars = mean_points({float(of[0].length): [cell.accuracy for cell in of] for of in cells})
            else:
                points = [(float(cell.length), cell.accuracy) for (cell,) in cells]
                bars = [cell.interval for (cell,) in cells]
            lines.append(style.line(name, points, bars=bars))
    for run, record in records:
        for setting in record.settings:
            rows += [
                (run.name, setting, f"{c.length:,}", percent(c.accuracy), *map(percent, c.interval), str(c.total))
                for c in (record.over_depths(n, setting) for n in record.lengths)
            ]
    # Earlier lines are wider, so they stay visible where later lines cover them.
    lines = [replace(line, width=2 + 0.7 * (len(lines) - 1 - index)) for index, line in enumerate(lines)]
    first = records[0][1]
    trained = first.subject.trained_length
    drawing = chart(
        "accuracy by context length",
        lines,
        x=Axis("context length, tokens", log=True, format=length, base=2.0),
        y=Axis("accuracy", format=lambda v: f"{100 * v:g}%", include=(0.0, 1.0)),
        level=(first.chance, f"chance, {number(100 * first.chance)}%") if first.chance > 0.01 else None,
        limit=None if trained is None else (float(trained), "training length"),
    )
    columns = ("run", "setting", "length", "accuracy", "low", "high", "questions")
    caption = "Mean over all depths; bars are 95% Wilson intervals, or the standard deviation over several seeds."
    return figure(drawing, caption, (record.made.command for _, record in records), columns, rows)


def _series(name: str, setting: str) -> str:
    return name if setting == AS_TRAINED else f"{name}, {setting}"


def _grid(group: str, records: list[Retrieval]) -> str:
    record = pooled(records)
    cells = {}
    for depth in record.depths:
        for tokens in record.lengths:
            best = record.best(tokens, depth)
            note = "" if best.setting == AS_TRAINED else best.setting
            cells[f"{depth:g}", f"{tokens:,}"] = Cell(best.accuracy, note)
    trained = record.subject.trained_length
    drawing = heat_map(
        f"{group}: {record.task} by depth and context length",
        cells,
        rows=[f"{depth:g}" for depth in record.depths],
        columns=[f"{tokens:,}" for tokens in record.lengths],
        labels=("depth", "context length, tokens"),
        limit=None if trained is None else sum(tokens <= trained for tokens in record.lengths),
    )
    seeds = f" over {len(records)} seeds" if len(records) > 1 else ""
    caption = f"{group}: accuracy{seeds} of the best setting in each cell, named unless it is the model as trained. "
    caption += "Cells right of the line are longer than the training length."
    columns = ("length", "depth", "setting", "correct", "questions", "accuracy", "low", "high")
    rows = (
        (
            f"{c.length:,}",
            f"{c.depth:g}",
            c.setting,
            str(c.correct),
            str(c.total),
            percent(c.accuracy),
            *map(percent, c.interval),
        )
        for c in record.cells
    )
    return figure(drawing, caption, (record.made.command for record in records), columns, rows)


def positions(content: Content) -> Section:
    records = list(records_of(content.report, LossByPosition))
    hint = missing_records(content.report, LossByPosition, "positions")
    if not records:
        return Section("positions", "Loss by position", hint)
    lines = []
    for group, members in _by_group(records).items():
        for index, setting in enumerate(dict.fromkeys(p.setting for record in members for p in record.points)):
            of_setting = [p for record in members for p in record.points if p.setting == setting]
            if len(members) > 1:
                contexts = dict.fromkeys(float(p.context) for p in of_setting)
                points, bars = mean_points({n: [p.nats for p in of_setting if p.context == n] for n in contexts})
            else:
                points = [(float(p.context), p.nats) for p in of_setting]
                bars = [(p.nats - p.error, p.nats + p.error) for p in of_setting]
            lines.append(content.palette.group(group, index).line(_series(group, setting), points, bars=bars))
    rows = [
        (run.name, p.setting, f"{p.context:,}", decimal(p.nats), decimal(p.error), str(p.documents))
        for run, record in records
        for p in record.points
    ]
    trained = records[0][1].subject.trained_length
    drawing = chart(
        "loss by preceding tokens",
        lines,
        x=Axis("preceding tokens", log=True, format=length, base=2.0),
        y=Axis("nats per token"),
        limit=None if trained is None else (float(trained), "training length"),
    )
    columns = ("run", "setting", "context", "nats per token", "standard error", "documents")
    caption = "Mean over positions within 10% of the context; bars are standard errors over documents, "
    caption += "or the standard deviation over several seeds."
    commands = (record.made.command for _, record in records)
    return Section("positions", "Loss by position", figure(drawing, caption, commands, columns, rows) + hint)


def texts(content: Content) -> Section:
    records = list(records_of(content.report, TextLoss))
    hint = missing_records(content.report, TextLoss, "loss")
    if not records:
        return Section("texts", "Loss on a text", hint)
    columns = ("run", "bits per byte", "nats per token", "tokens", "context", "stride", "text")
    rows = (
        (run.name, decimal(r.bits_per_byte), decimal(r.nats), f"{r.tokens:,}", str(r.context), str(r.stride), r.text)
        for run, r in records
    )
    commands = command_block(record.made.command for _, record in records)
    body = f"{table(columns, rows)}<p>Bits per byte can be compared across vocabularies.</p>\n{commands}"
    return Section("texts", "Loss on a text", body + hint)


def windows(content: Content) -> Section:
    report = content.report
    body = "".join(_windows(run, record) for run, record in _first_seeds(content, Windows))
    return Section("windows", "Windows and acceptance", body + missing_records(report, Windows, "windows"))


def _first_seeds(content: Content, kind: type[R]) -> list[tuple[ReportRun, R]]:
    """Records of one run per group: other seeds would repeat the same drawings."""
    shown: dict[str, tuple[ReportRun, R]] = {}
    for run, record in records_of(content.report, kind):
        shown.setdefault(run.label.group, (run, record))
    return list(shown.values())


def _windows(run: ReportRun, record: Windows) -> str:
    windows = [(float(head.layer), head.window) for head in record.heads if head.window is not None]
    acceptances = [(float(head.layer), head.acceptance) for head in record.heads if head.acceptance is not None]
    layers = sorted({head.layer for head in record.heads})
    trained = record.subject.trained_length
    drawings = ""
    if windows:
        drawings += chart(
            f"{run.name}: learned window of each head",
            [Line("window", windows, joined=False)],
            x=Axis("layer", ticks=layers),
            y=Axis("window, tokens", log=True),
            level=None if trained is None else (float(trained), f"training length {trained}"),
        )
    if acceptances:
        drawings += chart(
            f"{run.name}: learned acceptance width of each head",
            [Line("acceptance width", acceptances, joined=False)],
            x=Axis("layer", ticks=layers),
            y=Axis("acceptance width r", include=(0.0, 1.0)),
        )
    if not drawings:
        shares = [(float(head.layer), head.accepted) for head in record.heads]
        drawings = chart(
            f"{run.name}: share of keys each head uses",
            [Line("share of keys used", shares, joined=False)],
            x=Axis("layer", ticks=layers),
            y=Axis("share of visible keys with non-zero weight", include=(0.0, 1.0)),
        )
    columns = ("layer", "head", "window", "acceptance", "accepted", "queries without a key", "mean sum of weights")
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
    caption = f"{run.name} on {record.tokens} tokens of {record.text}: one dot per head."
    drawing = f"<div class='row'>{drawings}</div>"
    return f"<h3>{safe(run.name)}</h3>\n" + figure(drawing, caption, [record.made.command], columns, rows)


def relevance(content: Content) -> Section:
    report = content.report
    body = "".join(_relevance(run, record) for run, record in _first_seeds(content, RelevanceMaps))
    return Section("relevance", "Relevance maps", body + missing_records(report, RelevanceMaps, "relevance"))


def _relevance(run: ReportRun, record: RelevanceMaps) -> str:
    parts = []
    for layer in record.layers:
        for head in layer.heads:
            short = head.name.removeprefix("layers.").replace(".heads.", ", head ")
            cropped = [row[:MAX_MAP_TOKENS] for row in head.weights[:MAX_MAP_TOKENS]]
            drawing = relevance_map(f"{run.name}, layer {short}: attention weights", cropped)
            parts.append(f"<div class='map'>{drawing}<span class='hint'>layer {safe(short)}</span></div>")
    tokens = record.tokens
    token_list = " ".join(f"<span>{safe_token(piece)}</span>" for piece in tokens[:MAX_MAP_TOKENS])
    rows = (
        (
            f.head,
            percent(f.accepted),
            number(f.mass),
            number(f.most),
            f"query {f.query}, key {f.key}",
            f"{tokens[f.query]!r} -> {tokens[f.key]!r}",
        )
        for f in summarize_maps(record)
    )
    columns = ("head", "accepted", "mean sum of weights", "largest weight", "position", "tokens")
    caption = (
        f"{run.name} on {record.text}: queries from top to bottom, keys from left to right. Each map is scaled to "
    )
    caption += "its largest weight; blank cells are exactly zero. All weights are in the record, evals/relevance.json."
    drawing = f"<div class='maps'>{''.join(parts)}</div>\n<p class='tokens'>{token_list}</p>"
    return f"<h3>{safe(run.name)}</h3>\n" + figure(drawing, caption, [record.made.command], columns, rows)


def missing_records(report: Report, kind: type[R], verb: str) -> str:
    """Return a hint for the runs that lack a record of this kind, with the command that makes one."""
    recorded = {run.name for run, _ in records_of(report, kind)}
    lacking = [run for run in report.runs if run.name not in recorded]
    if kind in (TextLoss, LossByPosition):
        lacking = [run for run in lacking if not _is_recall(run)]
        if not lacking and not recorded:
            return missing_hint("These runs were not trained on text.")
    if not lacking:
        return ""
    flags = {"retrieval": " --task recall", "windows": " --text recall", "relevance": " --text recall"}
    task = flags.get(verb, "") if _is_recall(lacking[0]) else ""
    command = f"keysift eval {verb} {shlex.quote(lacking[0].summary.path)}{task}"
    return missing_hint(f"No record of {', '.join(run.name for run in lacking)}. Create it with", command)


def _is_recall(run: ReportRun) -> bool:
    return run.summary.data.partition(":")[0] == "recall"
