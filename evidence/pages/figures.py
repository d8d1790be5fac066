"""Figures of the study pages, as SVG."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from evidence.claims.groups import SeedGroup, best_groups, chance
from evidence.claims.training_rules import RECALLED
from evidence.study import POSITIONS, Figure
from keysift.core.statistics import Sample
from keysift.web.shared.chart import EMPTY, Axis, Line, chart, svg_file

GAIN_RATIOS = (2, 4, 8, 16)  # multiples of the training length; at 1 there is nothing beyond it
LENGTHS = (1, 2, 4, 8, 16, 32, 64)  # multiples of the training length


def draw(figure: Figure, groups: Sequence[SeedGroup]) -> str | None:
    """None if there is nothing to draw."""
    drawing = _DRAW[figure](groups)
    return None if drawing == EMPTY else svg_file(drawing)


def _accuracy_by_length(groups: Sequence[SeedGroup]) -> str:
    x = Axis("length, as a multiple of the training length", log=True, ticks=LENGTHS, format=lambda v: f"{v:g}x")
    lines = _lines(groups, "lengths", SeedGroup.accuracy_at, LENGTHS)
    level = (chance(groups[0].records[0].settings), "chance") if lines else None
    return chart("accuracy by length", lines, x=x, y=Axis("share of correct answers", include=(0.0, 1.0)), level=level)


def _loss_by_position(groups: Sequence[SeedGroup]) -> str:
    x = Axis("tokens before the predicted one, in training lengths", log=True, ticks=POSITIONS)
    lines = _lines(groups, "positions", SeedGroup.loss_at, POSITIONS)
    return chart("loss by position", lines, x=x, y=Axis("nats"))


def _lines(
    groups: Sequence[SeedGroup],
    measure: str,
    read: Callable[[SeedGroup, Any, str], Sample | None],
    columns: Sequence[float],
) -> list[Line]:
    """Mean over seeds by column, one line per model and setting."""
    lines = []
    for group in best_groups(groups):
        for setting in group.settings(measure):
            samples = {column: read(group, column, setting) for column in columns}
            points = [(float(column), values.mean) for column, values in samples.items() if values]
            lines += [Line(f"{group.label}, {setting}", points)] if points else []
    return lines


def _loss_by_rate(groups: Sequence[SeedGroup]) -> str:
    """Loss of the finished runs; a cross at the edge marks rates at which some runs diverged."""
    lines = []
    for name in dict.fromkeys(group.label for group in groups):
        own = sorted((group for group in groups if group.label == name), key=lambda group: group.rate)
        points = [(group.rate, group.losses.mean) for group in own if group.losses]
        lines.append(Line(name, points, off_chart=[group.rate for group in own if group.diverged]))
    return chart("loss by learning rate", lines, x=Axis("learning rate", log=True), y=Axis("validation loss, nats"))


def _loss_by_size(groups: Sequence[SeedGroup]) -> str:
    best = sorted(best_groups(groups), key=lambda group: group.parameters)
    lines = []
    for name in dict.fromkeys(group.label for group in best):
        own = [group for group in best if group.label == name]
        lines.append(Line(name, [(float(group.parameters), group.losses.mean) for group in own if group.losses]))
    return chart("loss by parameters", lines, x=Axis("parameters", log=True), y=Axis("validation loss, nats"))


def _loss_by_tokens(groups: Sequence[SeedGroup]) -> str:
    """Mean validation loss over seeds during training."""
    lines = []
    for group in best_groups(groups):
        tokens = int(group.records[0].settings["batch_tokens"])
        curves = [{int(step): loss for step, loss in record.validations} for record in group.records if record.finished]
        steps = sorted(set.intersection(*map(set, curves)))
        points = [(step * tokens, statistics.mean(curve[step] for curve in curves)) for step in steps]
        lines.append(Line(group.label, points))
    x = Axis("training tokens", log=True)
    return chart("validation loss by training tokens", lines, x=x, y=Axis("validation loss, nats"))


def _context_gain(groups: Sequence[SeedGroup]) -> str:
    x = Axis("length, as a multiple of the training length", log=True, ticks=GAIN_RATIOS, format=lambda v: f"{v:g}x")
    lines = _lines(groups, "context_gain", SeedGroup.context_gain_at, GAIN_RATIOS)
    y = Axis("gain from the context beyond the training length, nats")
    level = (0.0, "as good as a cut context") if lines else None
    return chart("gain from the context", lines, x=x, y=y, level=level)


def _tokens_by_width(groups: Sequence[SeedGroup]) -> str:
    """Tokens until RECALLED, by key width, one line per initial acceptance."""
    lines: dict[float, list[tuple[float, float]]] = {}
    for group in best_groups(groups):
        tokens, settings = group.tokens_until(RECALLED), group.records[0].settings
        if tokens is not None:
            point = float(settings["key_width"]), tokens.mean
            lines.setdefault(settings["acceptance_start"][0], []).append(point)
    drawn = [Line(f"initial acceptance {start:g}", sorted(points)) for start, points in sorted(lines.items())]
    x = Axis("key width", log=True, ticks=(8, 16, 32, 64))
    return chart("tokens by key width", drawn, x=x, y=Axis(f"tokens until {RECALLED:.0%} recall", include=(0.0,)))


_DRAW: dict[Figure, Callable[[Sequence[SeedGroup]], str]] = {
    "accuracy_by_length": _accuracy_by_length,
    "context_gain": _context_gain,
    "loss_by_position": _loss_by_position,
    "loss_by_rate": _loss_by_rate,
    "loss_by_size": _loss_by_size,
    "loss_by_tokens": _loss_by_tokens,
    "tokens_by_width": _tokens_by_width,
}
