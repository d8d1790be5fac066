"""Runs as charts: losses over steps, learned windows over layers."""

import math
from collections.abc import Mapping, Sequence

from keysift.web.chart import Axis, Line, chart

Points = Sequence[tuple[float, float]]


def loss_chart(losses: Mapping[str, Points], what: str = "loss, nats per token") -> str:
    """One line for each run: (step, loss) pairs. Non-finite losses are left out."""
    lines = [Line(name, points, dots=len(points) <= 60) for name, points in losses.items()]
    return chart("loss over steps", lines, x=Axis("step"), y=Axis(what))


def every_step(losses: Sequence[float], points: int = 300) -> list[tuple[float, float]]:
    """Losses of steps 1, 2, ... as points; of a long run the means of stretches, so that the page stays small."""
    each = max(1, math.ceil(len(losses) / points))
    found = []
    for start in range(0, len(losses), each):
        part = [loss for loss in losses[start : start + each] if math.isfinite(loss)]
        if part:
            found.append((float(min(start + each, len(losses))), sum(part) / len(part)))
    return found


def window_chart(layers: Sequence[Sequence[float]], context: int) -> str:
    """A dot for each tile, one column a layer; the line marks the training length."""
    tiles = [(float(number), window) for number, layer in enumerate(layers, 1) for window in layer]
    return chart(
        "learned window of each tile",
        [Line("window", tiles, joined=False)],
        x=Axis("layer", marks=range(1, len(layers) + 1)),
        y=Axis("window, tokens", log=True),
        level=(float(context), f"training length {context}"),
    )
