"""Sections of a report about runs: what was compared and how it was matched, loss curves, stability, scaling, latency,
samples."""

import math
from collections.abc import Sequence

from keysift.bench.record import Result
from keysift.evaluate.measured_runs import Scaling, Spread, Stability
from keysift.web.chart import Axis, Line, chart
from keysift.web.curves import every_step, loss_chart
from keysift.web.number import length, number, time_tick
from keysift.web.number import time as clock
from keysift.web.page import safe, table
from keysift.web.report_parts import Section, decimal, figure, made, missing, percent, side_by_side
from keysift.web.report_record import Report, ReportRun
from keysift.web.run_figures import STEPS, latency_lines


def compared(report: Report) -> Section:
    facts = ("parameters", "tokens", "length", "token stream", "rate", "seed", "state", "validation", "accuracy")
    heads = ("run", "model", *facts, "training time", "FLOPs")
    rows = [
        (
            one.name,
            one.summary.model,
            f"{one.summary.parameters:,}",
            f"{one.tokens:,}",
            str(one.summary.settings.get("context", "")),
            one.stream[:12],
            rate(one.rate),
            str(one.summary.settings.get("seed", "")),
            one.summary.state,
            decimal(one.summary.val_loss),
            "" if one.summary.accuracy is None else percent(one.summary.accuracy),
            "" if one.seconds is None else clock(one.seconds),
            "" if one.flops is None else number(one.flops),
        )
        for one in report.runs
    ]
    sentences = "".join(f"<li>{safe(said)}</li>\n" for said in matched(report))
    commands = made(one.command for one in report.runs)
    return Section("compared", "What was compared", f"<ul>\n{sentences}</ul>\n{table(heads, rows)}{commands}")


def matched(report: Report) -> list[str]:
    """How alike the runs are in what a fair comparison holds fixed."""
    runs = report.runs
    said = []
    if len(runs) > 1:
        sizes = [one.summary.parameters for one in runs]
        said.append(f"Parameters: {min(sizes):,} to {max(sizes):,}, {max(sizes) / min(sizes) - 1:.1%} apart.")
        tokens = sorted({one.tokens for one in runs})
        budget = f"{tokens[0]:,} each" if len(tokens) == 1 else f"not the same, {tokens[0]:,} to {tokens[-1]:,}"
        said.append(f"Tokens trained on: {budget}.")
        streams = {one.stream for one in runs}
        same = "the same in the same order, by its hash" if len(streams) == 1 else f"{len(streams)} different ones"
        said.append(f"Token stream: {same}.")
    return said + [f"Rate of {one.name}: {_chosen(one, report.stability)}." for one in runs]


def _chosen(one: ReportRun, sweeps: Sequence[Stability]) -> str:
    for sweep in sweeps:
        model = one.summary.model
        names = dict.fromkeys(t.model for t in sweep.trials if t.model == model or t.model.startswith(f"{model}, "))
        for name in names:
            best = sweep.best(name)
            tried = [rate(point.rate) for point in sweep.points if point.name == name]
            if best is not None and len(tried) > 1:
                verdict = (
                    "the best" if math.isclose(best.rate, one.rate) else f"not the best, which is {rate(best.rate)},"
                )
                return f"{rate(one.rate)}, {verdict} of {', '.join(tried)} in {sweep.source}"
    return f"{rate(one.rate)}, from no sweep in this report"


def rate(value: float) -> str:
    """2^-6 where it is a power of two."""
    power = math.log2(value) if value > 0 else 0.5
    return f"2^{power:.0f}" if power == round(power) else f"{value:g}"


def curves(report: Report) -> Section:
    commands = [one.command for one in report.runs]
    validations = {one.name: one.summary.validations for one in report.runs if one.summary.validations}
    training = {one.name: every_step(one.summary.losses) for one in report.runs if one.summary.losses}
    drawn = []
    for what, lines in (("Validation", validations), ("Training", training)):
        if lines:
            rows = [(name, f"{step:.0f}", decimal(loss)) for name, points in lines.items() for step, loss in points]
            drawn.append(figure(loss_chart(lines), f"{what} loss over steps.", commands, ("run", "step", "loss"), rows))
    hint = missing("No run has made a step yet; resume with", "keysift train --resume RUN")
    return Section("loss", "Loss curves", side_by_side(drawn) or hint)


_SPREAD = ("model", "parameters", "rate", "mean loss", "deviation", "seeds", "diverged")


def _spread(one: Spread) -> tuple[str, ...]:
    figures = (decimal(one.mean), decimal(one.deviation), str(one.seeds), str(one.diverged))
    return (one.name, f"{one.parameters:,}", rate(one.rate), *figures)


def _lines(points: Sequence[Spread], across: str) -> list[Line]:
    lines = []
    for name in dict.fromkeys(one.name for one in points):
        own = [one for one in points if one.name == name]
        known = [(float(getattr(one, across)), one.mean, one.deviation or 0.0) for one in own if one.mean is not None]
        lines.append(
            Line(
                name,
                [(x, mean) for x, mean, _ in known],
                bars=[(mean - spread, mean + spread) for _, mean, spread in known],
                lost=[float(getattr(one, across)) for one in own if one.diverged],
            )
        )
    return lines


def stability(report: Report) -> Section:
    body = "".join(map(_stability, report.stability))
    hint = missing(
        "No sweep over learning rates given. Make one, and name its folder with --sweep:",
        "keysift sweep --over lr=0.004,0.016,0.06 seed=0,1,2 --steps 200 --out sweeps/rates",
    )
    return Section("stability", "Stability over learning rates", body or hint)


def _stability(record: Stability) -> str:
    drawing = chart(
        "final loss by learning rate",
        _lines(record.points, "rate"),
        x=Axis("learning rate", log=True, base=2.0, show=rate),
        y=Axis("final loss, nats per token"),
    )
    caption = "Mean and standard deviation over seeds; a cross at the upper edge is a run that diverged."
    return figure(drawing, caption, [record.made.command], _SPREAD, map(_spread, record.points))


def scaling(report: Report) -> Section:
    body = "".join(map(_scaling, report.scaling))
    hint = missing(
        "No runs of several sizes given. Make some, and name their folder with --scaling:",
        "keysift sweep --each psi=4 psi=6 psi=8 --over seed=0,1,2 --steps 200 --out sweeps/sizes",
    )
    return Section("scaling", "Scaling with parameters", body or hint)


def _scaling(record: Scaling) -> str:
    lines = [Line(line.name, line.points, bars=line.bars) for line in _lines(record.points, "parameters")]
    across = Axis("parameters", log=True)
    drawing = chart("final loss by parameters", lines, x=across, y=Axis("final loss, nats per token"))
    caption = "Each size at the best of the rates it was trained with; mean and standard deviation over seeds."
    return figure(drawing, caption, [record.made.command], _SPREAD, map(_spread, record.points))


def latency(report: Report) -> Section:
    body = "".join(map(_latency, report.latency))
    hint = missing(
        "No benchmark given. Make one, and name its file with --bench:", "keysift bench models --out models.json"
    )
    return Section("latency", "Latency", body or hint)


def _latency(record: Result) -> str:
    parts = []
    for step in STEPS:
        lines = [Line(name, points) for name, points in latency_lines(record, step).items()]
        if not lines:
            continue
        rows = (
            (
                row.what,
                f"{row.tokens:,}",
                clock(row.seconds.median),
                f"{clock(row.seconds.low)} to {clock(row.seconds.high)}",
                "" if row.speedup is None else f"{number(row.speedup.median)}x {row.against}",
                "" if row.cache_bytes is None else f"{row.cache_bytes:,}",
            )
            for row in record.rows
            if row.step == step
        )
        heads = ("model", "tokens", "median", "quartiles", "speed against", "bytes of cache")
        where = f"{record.machine.cpu}, {record.machine.threads} threads, {record.date}"
        drawing = chart(
            f"{step}, seconds by tokens",
            lines,
            x=Axis("tokens", log=True, show=length, base=2.0),
            y=Axis("seconds", log=True, show=time_tick),
        )
        parts.append(figure(drawing, f"{step.capitalize()}: median seconds; {where}.", [record.command], heads, rows))
    return side_by_side(parts)


def samples(report: Report) -> Section:
    parts = []
    for one in report.runs:
        for sample in one.samples[-1:]:
            shown = safe(sample.text)
            parts.append(f"<h3>{safe(one.name)}, step {sample.step:,}</h3>\n<pre class='sample'>{shown}</pre>\n")
    if parts:
        parts.append(made(one.command for one in report.runs))
    hint = missing("No run has written a sample; make one with", "keysift generate RUN --prompt ...")
    return Section("samples", "Samples", "".join(parts) or hint)
