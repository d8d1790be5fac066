"""Figures of several runs: stability and scaling (needs `keysift[figures]`)."""

from collections.abc import Callable, Sequence
from typing import Any

from keysift.records.trials import Scaling, Stability, TrialGroup


def stability(record: Stability) -> Callable[[Any], None]:
    """Mean loss by learning rate with its deviation over seeds; a cross at the upper edge marks a diverged run."""

    def draw(axes: Any) -> None:
        for name in dict.fromkeys(point.name for point in record.points):
            points = [point for point in record.points if point.name == name]
            (line, *_) = _errorbar(axes, points, lambda p: p.rate, name)
            for point in (p for p in points if p.diverged):
                axes.plot(
                    point.rate, 1, "x", color=line.get_color(), transform=axes.get_xaxis_transform(), clip_on=False
                )
        axes.set_xscale("log", base=2)
        axes.set_xlabel("learning rate; x: a run diverged")
        axes.set_ylabel("final loss, nats per token")
        axes.legend(fontsize=8)

    return draw


def scaling(record: Scaling) -> Callable[[Any], None]:
    """Mean loss by number of parameters with its deviation over seeds."""

    def draw(axes: Any) -> None:
        for name in dict.fromkeys(point.name for point in record.points):
            _errorbar(
                axes, [point for point in record.points if point.name == name], lambda p: float(p.parameters), name
            )
        axes.set_xscale("log")
        axes.set_xlabel("parameters")
        axes.set_ylabel("final loss, nats per token")
        axes.legend(fontsize=8)

    return draw


def _errorbar(axes: Any, points: Sequence[TrialGroup], x: Callable[[TrialGroup], float], name: str) -> Any:
    finite = [(x(point), point.losses) for point in points if point.losses is not None]
    return axes.errorbar(
        [at for at, _ in finite],
        [losses.mean for _, losses in finite],
        yerr=[losses.std or 0.0 for _, losses in finite],
        label=name,
        marker="o",
        capsize=2,
    )
