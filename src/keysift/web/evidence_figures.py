"""The figures of docs/results that follow from records, as SVG."""

from collections.abc import Callable, Sequence

from keysift.sweep.groups import Group, at_best
from keysift.sweep.outline import POSITIONS
from keysift.sweep.pages import Page
from keysift.web.chart import EMPTY, Axis, Line, as_file, chart

RATIOS = (1, 2, 4, 8, 16, 32, 64)


def figure(one: Page, found: Sequence[Group]) -> str | None:
    """None where there is nothing to draw."""
    draw: dict[str, Callable[[Sequence[Group]], str]] = {
        "lengths": _lengths,
        "rates": _rates,
        "bars": _rates,
        "sizes": _sizes,
        "positions": _positions,
    }
    drawing = draw[one.figure](found)
    return None if drawing == EMPTY else as_file(drawing)


def _lengths(found: Sequence[Group]) -> str:
    lines = []
    for one in at_best(found):
        for setting in one.settings("lengths"):
            points = [(float(ratio), sample.mean) for ratio in RATIOS if (sample := one.retrieved(ratio, setting))]
            lines += [Line(f"{one.label}, {setting}", points)] if points else []
    x = Axis("length, as a multiple of the training length", log=True, marks=RATIOS, show=lambda v: f"{v:g}x")
    return chart("accuracy by length", lines, x=x, y=Axis("share of answers that are right"))


def _positions(found: Sequence[Group]) -> str:
    lines = []
    for one in at_best(found):
        for setting in one.settings("positions"):
            points = [(ratio, sample.mean) for ratio in POSITIONS if (sample := one.at_position(ratio, setting))]
            lines += [Line(f"{one.label}, {setting}", points)] if points else []
    x = Axis("tokens before the predicted one, in training lengths", log=True, marks=POSITIONS)
    return chart("loss by position", lines, x=x, y=Axis("nats"))


def _rates(found: Sequence[Group]) -> str:
    """Loss by rate, of the runs that count; a cross at the edge where some diverged."""
    labels = dict.fromkeys(one.label for one in found)
    lines = []
    for name in labels:
        own = sorted((one for one in found if one.label == name), key=lambda one: one.rate)
        points = [(one.rate, one.losses.mean) for one in own if one.losses]
        lines.append(Line(name, points, lost=[one.rate for one in own if one.diverged]))
    return chart("loss by learning rate", lines, x=Axis("learning rate", log=True), y=Axis("validation loss, nats"))


def _sizes(found: Sequence[Group]) -> str:
    best = sorted(at_best(found), key=lambda one: one.parameters)
    labels = dict.fromkeys(one.label for one in best)
    lines = [
        Line(name, [(float(one.parameters), one.losses.mean) for one in best if one.label == name and one.losses])
        for name in labels
    ]
    return chart("loss by parameters", lines, x=Axis("parameters", log=True), y=Axis("validation loss, nats"))
