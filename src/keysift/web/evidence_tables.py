"""The tables of docs/results that follow from records, as lines of Markdown."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from keysift.sweep.groups import Group, Sample, at_best
from keysift.sweep.outline import POSITIONS
from keysift.sweep.pages import Page
from keysift.web.evidence_figures import RATIOS

# How `Study.then` chooses the points that have every seed.
BEST = "At the rate whose first seed has the lowest validation loss (of all seeds, where every rate has them)"
TURNED = "q_proj"  # a projection that every model has; a Multiscreen and QK norm normalise what it gives


def tables(one: Page, found: Sequence[Group]) -> list[str]:
    special = {"lengths": _lengths, "positions": _positions, "rates": _turning}
    lines = special[one.figure](found) if one.figure in special else []
    lines += ["Every rate, mean and standard deviation over seeds:", ""]
    answers = any(group.accuracies for group in found)
    lines += head("model", "parameters", "rate", "seeds", "diverged", "loss", *(["accuracy"] if answers else []))
    for group in sorted(found, key=lambda group: (group.label, group.parameters, group.rate)):
        parameters, rate, _ = _facts(group)
        cells = [_cell(group.losses, "{:.4f}"), *([_cell(group.accuracies, "{:.1%}")] if answers else [])]
        lines.append(row(group.label, parameters, rate, str(len(group.records)), str(group.diverged), *cells))
    return lines


def _lengths(found: Sequence[Group]) -> list[str]:
    cells = [cell for group in found for record in group.records for cell in record.measures.get("lengths", [])]
    asked = {ratio: max((c["asked"] for c in cells if c["ratio"] == ratio), default=0) for ratio in RATIOS}
    if any("depth" in cell for cell in cells):
        how = (
            f"For every seed the same rows are read, {max(asked.values())} at each length and depth at most; they are "
            f"the same at every depth, so the spread leaves out that of the rows"
        )
    else:
        many = ", ".join(f"{asked[ratio]} at {ratio}x" for ratio in RATIOS if asked[ratio])
        how = f"For every seed the same needles are asked, each of a place of its own: {many}"
    lines = [f"{BEST}, mean and standard deviation over seeds of the share of needles found. {how}:", ""]
    ratios = [ratio for ratio in RATIOS if asked[ratio]]
    lines += head("model", "setting", "parameters", "rate", "seeds", *(f"{ratio}x" for ratio in ratios))
    for group in at_best(found):
        lines += _of_settings(group, "lengths", group.retrieved, ratios, "{:.0%}")
    return [*lines, "", *_windows(found)]


def _positions(found: Sequence[Group]) -> list[str]:
    lines = [
        f"{BEST}, nats per token with so many training lengths before it, mean and standard deviation over seeds:",
        "",
    ]
    lines += head("model", "setting", "parameters", "rate", "seeds", *(f"{ratio:g}x" for ratio in POSITIONS))
    for group in at_best(found):
        lines += _of_settings(group, "positions", group.at_position, POSITIONS, "{:.3f}")
    return [*lines, ""]


def _of_settings(
    group: Group, name: str, read: Callable[[Any, str], Sample | None], ratios: Sequence[float], shape: str
) -> list[str]:
    """A row for each way the model was run for the measure of that name."""
    lines = []
    for setting in group.settings(name):
        cells = [_cell(read(ratio, setting), shape) for ratio in ratios]
        lines.append(row(group.label, setting, *_facts(group), *cells))
    return lines


def _windows(found: Sequence[Group]) -> list[str]:
    """The longest window each run has learned; nothing where that was not measured."""
    lines = []
    for group in sorted(found, key=lambda group: (group.label, group.rate)):
        longest = [
            max(max(layer["windows"]) for layer in record.measures["windows"])
            for record in group.records
            if record.measures.get("windows")
        ]
        if longest:
            lines.append(row(group.label, f"{group.rate:g}", ", ".join(f"{window:,.0f}" for window in longest)))
    if not lines:
        return []
    return [
        "The longest window each run has learned, in tokens:",
        "",
        *head("model", "rate", "by seed"),
        *lines,
        "",
    ]


def _turning(found: Sequence[Group]) -> list[str]:
    """Do norms grow, and does the angle of a step fall, whatever the rate?"""
    lines = []
    for group in sorted(found, key=lambda group: (group.label, group.rate)):
        grown, last, slopes = [], [], []
        for record in group.records:
            norms, angles = (_curve(record.curves, what) for what in ("norms", "angles"))
            if len(angles) < 4:
                continue
            grown.append(norms[-1][1] / norms[0][1])
            last.append(angles[-1][1])
            warmup = int(record.settings.get("warmup") or 0)
            slopes.append(_slope([point for point in angles if point[0] > warmup]))
        if grown:
            figures = (
                f"{statistics.mean(grown):.3g}x",
                f"{statistics.mean(last):.2g}",
                f"{statistics.mean(slopes):+.2f}",
            )
            lines.append(row(group.label, f"{group.rate:g}", *figures))
    if not lines:
        return []
    told = (
        "The query projections: how much their norm grew, by which angle (radians) a step turned them at the end, and "
        "the power of the step number that the angle followed after the warm-up. Where outputs are normalised and "
        "nothing decays, -0.5 at every rate is expected (our hypothesis); the rate is constant after the warm-up:"
    )
    return [told, "", *head("model", "rate", "norm", "last angle", "power"), *lines, ""]


def _curve(curves: dict[str, list[list[float]]], what: str) -> list[list[float]]:
    return next((points for name, points in curves.items() if name.startswith(what) and TURNED in name), [])


def _slope(points: Sequence[Sequence[float]]) -> float:
    """Of the logarithm of a value over that of its step, by least squares."""
    able = [(math.log(step), math.log(value)) for step, value in points if value > 0]
    return statistics.linear_regression(*zip(*able, strict=True)).slope if len(able) > 1 else math.nan


def _facts(group: Group) -> tuple[str, str, str]:
    return f"{group.parameters:,}", f"{group.rate:g}", str(len(group.records))


def _cell(sample: Sample | None, shape: str) -> str:
    if sample is None:
        return ""
    spread = "" if sample.spread is None else f" ± {shape.format(sample.spread)}"
    return shape.format(sample.mean) + spread


def head(*titles: str) -> list[str]:
    return [row(*titles), "|" + "---|" * len(titles)]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
