"""Report sections about training: compared runs, loss curves, stability, scaling, latency and samples."""

import math
from collections.abc import Sequence
from dataclasses import replace

from keysift.core.number import length, number, time_tick
from keysift.core.number import time as format_time
from keysift.core.statistics import sample
from keysift.records.bench import Result
from keysift.records.report import Report, ReportRun
from keysift.records.trials import Scaling, Stability, TrialGroup
from keysift.web.report.parts import (
    Section,
    columns_with_values,
    command_block,
    decimal,
    figure,
    missing_hint,
    percent,
    side_by_side,
)
from keysift.web.report.series import Content, mean_line
from keysift.web.shared.chart import Axis, Line, chart, chart_or_values
from keysift.web.shared.latency import STEPS, latency_lines
from keysift.web.shared.page import safe, table
from keysift.web.shared.training_charts import Points, loss_lines, loss_points


def compared(content: Content) -> Section:
    """Results first: mean and spread over seeds, then every run; settings and commands follow."""
    report = content.report
    means = ""
    if content.has_seeds:
        mean_columns = ("runs", "validation", "std", "accuracy", "std", "seeds", "parameters")
        means_table = table(*columns_with_values(mean_columns, _mean_rows(content)))
        means = f"<h3>Mean over seeds</h3>\n{means_table}<h3>Every run</h3>\n"
    columns = ("run", "validation", "accuracy", "state", "parameters", "tokens", "rate", "training time", "FLOPs")
    results = [
        (
            run.name,
            decimal(run.summary.val_loss),
            "" if run.summary.accuracy is None else percent(run.summary.accuracy),
            run.summary.state,
            f"{run.summary.parameters:,}",
            f"{run.tokens:,}",
            format_rate(run.lr),
            "" if run.seconds is None else format_time(run.seconds),
            "" if run.flops is None else number(run.flops),
        )
        for run in report.runs
    ]
    settings = [
        (
            run.name,
            run.summary.model,
            str(run.summary.settings.get("context", "")),
            run.stream[:12],
            str(run.summary.settings.get("seed", "")),
            run.summary.path,
        )
        for run in report.runs
    ]
    settings_columns = ("run", "model", "length", "token stream", "seed", "directory")
    sentences = "".join(f"<li>{safe(sentence)}</li>\n" for sentence in comparison_sentences(report))
    commands = command_block(run.command for run in report.runs)
    details = (
        f"<details><summary>Models, seeds and directories</summary>\n{table(settings_columns, settings)}</details>\n"
    )
    results_table = table(*columns_with_values(columns, results))
    body = f"{means}{results_table}{details}<h3>Fairness of the comparison</h3>\n<ul>\n{sentences}</ul>\n{commands}"
    return Section("compared", "Results", body)


def _mean_rows(content: Content) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for group, runs in content.groups.items():
        losses = sample(run.summary.val_loss for run in runs)
        shares = sample(run.summary.accuracy for run in runs)
        rows.append(
            (
                group,
                decimal(losses.mean) if losses else "",
                decimal(losses.std) if losses else "",
                percent(shares.mean) if shares else "",
                percent(shares.std) if shares and shares.std is not None else "",
                str(len(runs)),
                f"{runs[0].summary.parameters:,}",
            )
        )
    return rows


def comparison_sentences(report: Report) -> list[str]:
    """Say whether the runs have equal parameters, tokens and data, and tuned learning rates."""
    runs = report.runs
    sentences = []
    if len(runs) > 1:
        sizes = [run.summary.parameters for run in runs]
        sentences.append(f"Parameters: {min(sizes):,} to {max(sizes):,}, {max(sizes) / min(sizes) - 1:.1%} apart.")
        tokens = sorted({run.tokens for run in runs})
        budget = f"{tokens[0]:,} each" if len(tokens) == 1 else f"different, {tokens[0]:,} to {tokens[-1]:,}"
        sentences.append(f"Tokens trained on: {budget}.")
        streams = {run.stream for run in runs}
        same = "identical for all runs (by hash)" if len(streams) == 1 else f"{len(streams)} different streams"
        sentences.append(f"Token stream: {same}.")
    groups = {run.label.group: run for run in reversed(runs)}
    rates = [f"Learning rate of {group}: {_rate_choice(run, report.stability)}." for group, run in groups.items()]
    return sentences + rates[::-1]


def _rate_choice(run: ReportRun, sweeps: Sequence[Stability]) -> str:
    """Compare the learning rate of a run with the rates of the sweeps in the report."""
    for sweep in sweeps:
        model = run.summary.model
        names = dict.fromkeys(t.model for t in sweep.trials if t.model == model or t.model.startswith(f"{model}, "))
        for name in names:
            best = sweep.best(name)
            rates = [format_rate(point.rate) for point in sweep.points if point.name == name]
            if best is not None and len(rates) > 1:
                verdict = "the best" if math.isclose(best.rate, run.lr) else f"not the best ({format_rate(best.rate)})"
                return f"{format_rate(run.lr)}, {verdict} of {', '.join(rates)} in {sweep.source}"
    return f"{format_rate(run.lr)}, not tuned by a sweep in this report"


def format_rate(value: float) -> str:
    """Format a learning rate; powers of two become 2^-6."""
    power = math.log2(value) if value > 0 else 0.5
    return f"2^{power:.0f}" if power == round(power) else f"{value:g}"


def curves(content: Content) -> Section:
    figures = []
    spread = " Mean over seeds, with the standard deviation." if content.has_seeds else ""
    for kind in ("Validation", "Training"):
        points = {run.name: _loss_curve(run, kind) for run in content.report.runs}
        if any(points.values()):
            lines = [
                mean_line(content.palette.group(group), group, [points[run.name] for run in runs])
                for group, runs in content.groups.items()
            ]
            rows = [(name, f"{step:.0f}", decimal(loss)) for name, curve in points.items() for step, loss in curve]
            commands = [run.command for run in content.report.runs]
            caption = f"{kind} loss over steps.{spread}"
            figures.append(figure(loss_lines(lines), caption, commands, ("run", "step", "loss"), rows))
    hint = missing_hint("No run has completed a step yet; resume with", "keysift train --resume RUN")
    return Section("loss", "Loss curves", side_by_side(figures) or hint)


def _loss_curve(run: ReportRun, kind: str) -> Points:
    return run.summary.validations if kind == "Validation" else loss_points(run.summary.losses)


_SPREAD_COLUMNS = ("model", "parameters", "rate", "mean loss", "std", "seeds", "diverged")


def _spread_row(point: TrialGroup) -> tuple[str, ...]:
    losses = point.losses
    mean, std, seeds = (losses.mean, losses.std, len(losses)) if losses else (None, None, 0)
    statistics = (decimal(mean), decimal(std), str(seeds), str(point.diverged))
    return (point.name, f"{point.parameters:,}", format_rate(point.rate), *statistics)


def _lines(content: Content, points: Sequence[TrialGroup], field: str) -> list[Line]:
    """One line per model: mean loss over `field`, with the standard deviation over seeds as error bars."""
    lines = []
    for name in dict.fromkeys(point.name for point in points):
        series = [point for point in points if point.name == name]
        means = [(float(getattr(p, field)), p.losses.mean, p.losses.std or 0.0) for p in series if p.losses]
        shown = content.model_name(name)
        lines.append(
            content.palette.model(shown).line(
                shown,
                [(x, mean) for x, mean, _ in means],
                bars=[(mean - std, mean + std) for _, mean, std in means],
                off_chart=[float(getattr(point, field)) for point in series if point.diverged],
            )
        )
    return lines


def stability(content: Content) -> Section:
    body = "".join(_stability(content, record) for record in content.report.stability)
    hint = missing_hint(
        "No sweep over learning rates was given. Run one and pass its folder with --sweep:",
        "keysift sweep --over lr=0.004,0.016,0.06 seed=0,1,2 --steps 200 --out sweeps/rates",
    )
    return Section("stability", "Stability over learning rates", body or hint)


def _stability(content: Content, record: Stability) -> str:
    drawing = chart_or_values(
        "final loss by learning rate",
        _lines(content, record.points, "rate"),
        x=Axis("learning rate", log=True, base=2.0, format=format_rate),
        y=Axis("final loss, nats per token"),
    )
    caption = "Mean and standard deviation over seeds; a cross at the upper edge marks a diverged run."
    return figure(drawing, caption, [record.made.command], _SPREAD_COLUMNS, map(_spread_row, record.points))


def scaling(content: Content) -> Section:
    body = "".join(_scaling(content, record) for record in content.report.scaling)
    hint = missing_hint(
        "No runs of several sizes were given. Train some and pass their folder with --scaling:",
        "keysift sweep --each psi=4 psi=6 psi=8 --over seed=0,1,2 --steps 200 --out sweeps/sizes",
    )
    return Section("scaling", "Scaling with parameters", body or hint)


def _scaling(content: Content, record: Scaling) -> str:
    lines = [replace(line, off_chart=()) for line in _lines(content, record.points, "parameters")]
    x_axis = Axis("parameters", log=True)
    drawing = chart_or_values("final loss by parameters", lines, x=x_axis, y=Axis("final loss, nats per token"))
    caption = "Each size at its best learning rate; mean and standard deviation over seeds."
    return figure(drawing, caption, [record.made.command], _SPREAD_COLUMNS, map(_spread_row, record.points))


def latency(content: Content) -> Section:
    body = "".join(_latency(content, record) for record in content.report.latency)
    hint = missing_hint(
        "No benchmark was given. Run one and pass its file with --bench:", "keysift bench models --out models.json"
    )
    return Section("latency", "Latency", body or hint)


def _latency(content: Content, record: Result) -> str:
    parts = []
    for step in STEPS:
        lines = [content.palette.model(name).line(name, points) for name, points in latency_lines(record, step).items()]
        if not lines:
            continue
        rows = (
            (
                row.what,
                f"{row.tokens:,}",
                format_time(row.seconds.median),
                f"{format_time(row.seconds.low)} to {format_time(row.seconds.high)}",
                "" if row.speedup is None else f"{number(row.speedup.median)}x {row.against}",
                "" if row.cache_bytes is None else f"{row.cache_bytes:,}",
            )
            for row in record.rows
            if row.step == step
        )
        columns = ("model", "tokens", "median", "quartiles", "speedup over", "cache bytes")
        machine = f"{record.machine.cpu}, {record.machine.threads} threads, {record.date}"
        drawing = chart(
            f"{step}, seconds by tokens",
            lines,
            x=Axis("tokens", log=True, format=length, base=2.0),
            y=Axis("seconds", log=True, format=time_tick),
        )
        parts.append(
            figure(drawing, f"{step.capitalize()}: median seconds; {machine}.", [record.command], columns, rows)
        )
    return side_by_side(parts)


def samples(content: Content) -> Section:
    report, parts = content.report, []
    for run in report.runs:
        for last in run.samples[-1:]:
            text = safe(last.text)
            parts.append(f"<h3>{safe(run.name)}, step {last.step:,}</h3>\n<pre class='sample'>{text}</pre>\n")
    if parts:
        parts.append(command_block(run.command for run in report.runs))
    hint = missing_hint("No run has written a sample; generate text with", "keysift generate RUN --prompt ...")
    return Section("samples", "Samples", "".join(parts) or hint)
