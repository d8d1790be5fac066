"""Charts of training runs: loss over steps, learned windows over layers."""

import math
from collections.abc import Mapping, Sequence

from keysift.web.shared.chart import Axis, Line, chart, chart_or_values

Points = Sequence[tuple[float, float]]
MOST_DOTS = 60  # points of a line that are drawn as dots


def loss_chart(losses: Mapping[str, Points], label: str = "loss, nats per token") -> str:
    """Draw one line of (step, loss) points per run. Non-finite losses are left out."""
    return loss_lines([Line(name, points, dots=len(points) <= MOST_DOTS) for name, points in losses.items()], label)


def loss_lines(lines: Sequence[Line], label: str = "loss, nats per token") -> str:
    """Draw lines of (step, loss) points."""
    return chart_or_values("loss over steps", lines, x=Axis("step"), y=Axis(label))


def loss_points(losses: Sequence[float], max_points: int = 300) -> list[tuple[float, float]]:
    """Return (step, loss) points for the losses of steps 1, 2, ...

    A longer run is averaged over equal stretches, so that the page stays small.
    """
    stretch = max(1, math.ceil(len(losses) / max_points))
    points = []
    for start in range(0, len(losses), stretch):
        finite = [loss for loss in losses[start : start + stretch] if math.isfinite(loss)]
        if finite:
            points.append((float(min(start + stretch, len(losses))), sum(finite) / len(finite)))
    return points


def window_chart(layers: Sequence[Sequence[float]], context: int) -> str:
    """Draw the learned window of every tile as a dot over its layer; a line marks the training length."""
    tiles = [(float(number), window) for number, layer in enumerate(layers, 1) for window in layer]
    return chart(
        "learned window of each tile",
        [Line("window", tiles, joined=False)],
        x=Axis("layer", ticks=range(1, len(layers) + 1)),
        y=Axis("window, tokens", log=True),
        level=(float(context), f"training length {context}"),
    )
