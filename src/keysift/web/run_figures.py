"""Figures of what several runs say together, and of benchmarks, for papers and slides (see figures.py)."""

from collections.abc import Callable, Sequence
from typing import Any

from keysift.bench.record import Result
from keysift.core.errors import DataError
from keysift.evaluate.measured_runs import Scaling, Spread, Stability

STEPS = ("forward", "training step", "decode")


def stability(record: Stability) -> Callable[[Any], None]:
    """Mean loss by rate with the deviation over seeds; a cross at the upper edge is a run that diverged."""

    def draw(axes: Any) -> None:
        for name in dict.fromkeys(one.name for one in record.points):
            points = [one for one in record.points if one.name == name]
            (line, *_) = _errorbar(axes, [p for p in points if p.mean is not None], lambda p: p.rate, name)
            for one in (p for p in points if p.diverged):
                axes.plot(one.rate, 1, "x", color=line.get_color(), transform=axes.get_xaxis_transform(), clip_on=False)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("learning rate; x: a run diverged")
        axes.set_ylabel("final loss, nats per token")
        axes.legend(fontsize=8)

    return draw


def scaling(record: Scaling) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        for name in dict.fromkeys(one.name for one in record.points):
            _errorbar(axes, [one for one in record.points if one.name == name], lambda p: float(p.parameters), name)
        axes.set_xscale("log")
        axes.set_xlabel("parameters")
        axes.set_ylabel("final loss, nats per token")
        axes.legend(fontsize=8)

    return draw


def _errorbar(axes: Any, points: Sequence[Spread], across: Callable[[Spread], float], name: str) -> Any:
    return axes.errorbar(
        [across(one) for one in points],
        [one.mean for one in points],
        yerr=[one.deviation or 0.0 for one in points],
        label=name,
        marker="o",
        capsize=2,
    )


def latency(record: Result) -> Callable[[Any], None]:
    """One panel for each step that was timed at two lengths or more."""

    def draw(axes: Any) -> None:
        lines = {step: latency_lines(record, step) for step in STEPS}
        shown = {step: found for step, found in lines.items() if found}
        if not shown:
            raise DataError("nothing was timed at two lengths, so there is no curve to draw; time more lengths")
        figure = axes.figure
        axes.remove()
        figure.set_size_inches(5.0 * len(shown), 4.5)
        for place, (step, found) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True):
            for name, points in found.items():
                place.plot(*zip(*points, strict=True), marker="o", label=name)
            place.set_xscale("log", base=2)
            place.set_yscale("log")
            place.set_xlabel("tokens")
            place.set_ylabel("seconds")
            place.set_title(step)
            place.legend(fontsize=7)

    return draw


def latency_lines(record: Result, step: str) -> dict[str, list[tuple[float, float]]]:
    """Median seconds over tokens of everything timed at two lengths or more."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in record.rows:
        if row.step == step:
            found.setdefault(row.what, []).append((float(row.tokens), row.seconds.median))
    return {name: sorted(points) for name, points in found.items() if len(points) > 1}
