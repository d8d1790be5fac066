"""Series of a page: runs that differ in their seed only share a line, and a model has one colour in every chart."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from keysift.core.statistics import sample
from keysift.records.report import Report, ReportRun
from keysift.records.runs import RunLabel
from keysift.web.shared.chart import DASHES, MARKERS, Line
from keysift.web.shared.page import SERIES
from keysift.web.shared.training_charts import MOST_DOTS, Points


@dataclass(frozen=True)
class Style:
    """Look of a line: numbers of its colour, dash pattern and marker."""

    colour: int
    dash: int = 0
    marker: int = 0

    def line(self, name: str, points: Points, **options: object) -> Line:
        return Line(name, points, colour=self.colour, dash=self.dash, marker=self.marker, **options)  # type: ignore[arg-type]


@dataclass
class Palette:
    """Styles of groups and models, equal in all charts of a page.

    With several models, a model has one colour and its groups differ by their dashes. With one model, or with more
    groups than dash patterns, every group has a colour.
    """

    models: dict[str, Style] = field(default_factory=dict)
    groups: dict[str, Style] = field(default_factory=dict)

    @classmethod
    def of(cls, labels: Iterable[RunLabel]) -> "Palette":
        members: dict[str, list[str]] = {}
        for label in labels:
            groups = members.setdefault(label.model, [])
            groups += [] if label.group in groups else [label.group]
        palette = cls()
        if 1 < len(members) <= SERIES and max(map(len, members.values())) <= len(DASHES):
            for colour, (model, groups) in enumerate(members.items()):
                palette.models[model] = Style(colour)
                palette.groups |= {group: Style(colour, dash) for dash, group in enumerate(groups)}
            return palette
        for number, group in enumerate(group for groups in members.values() for group in groups):
            palette.groups[group] = Style(number, number // SERIES)
        palette.models = {model: palette.groups[groups[0]] for model, groups in members.items() if len(groups) == 1}
        return palette

    def group(self, name: str, setting: int = 0) -> Style:
        """Style of a group; inference settings of the same group differ by dashes and markers."""
        style = self.groups[name]
        dashes = 1 + max(other.dash for other in self.groups.values() if other.colour == style.colour)
        return Style(style.colour, style.dash + dashes * setting, setting % len(MARKERS))

    def model(self, name: str) -> Style:
        """Style of a model; a model without runs on the page gets the next free colour."""
        if name not in self.models:
            used = {style.colour for style in (*self.models.values(), *self.groups.values())}
            self.models[name] = Style(max(used, default=-1) + 1)
        return self.models[name]


def mean_line(style: Style, name: str, curves: Sequence[Points]) -> Line:
    """The mean of curves over seeds, with their standard deviation as bars or as a band."""
    values: dict[float, list[float]] = {}
    for curve in curves:
        for x, y in curve:
            values.setdefault(x, []).append(y)
    points, bars = mean_points(values)
    return style.line(name, points, bars=bars if len(curves) > 1 else (), dots=len(points) <= MOST_DOTS)


def mean_points(values: Mapping[float, Sequence[float]]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Means by x, and mean minus and plus the standard deviation; x values without a finite y are left out."""
    points, bars = [], []
    for x, of_seeds in sorted(values.items()):
        finite = sample(y if math.isfinite(y) else None for y in of_seeds)
        if finite is not None:
            std = finite.std or 0.0
            points.append((x, finite.mean))
            bars.append((finite.mean - std, finite.mean + std))
    return points, bars


@dataclass(frozen=True)
class Content:
    """Content of a report page with the styles of its series."""

    report: Report
    palette: Palette

    @classmethod
    def of(cls, report: Report) -> "Content":
        return cls(report, Palette.of(run.label for run in report.runs))

    @property
    def groups(self) -> dict[str, list[ReportRun]]:
        """Runs that differ in their seed only, by the label of their group."""
        groups: dict[str, list[ReportRun]] = {}
        for run in self.report.runs:
            groups.setdefault(run.label.group, []).append(run)
        return groups

    @property
    def has_seeds(self) -> bool:
        return any(len(runs) > 1 for runs in self.groups.values())

    def model_name(self, name: str) -> str:
        """The label of a model on this page, for a model that a sweep or a benchmark names in full."""
        labels = {run.label.model for run in self.report.runs if run.summary.model == name}
        return labels.pop() if len(labels) == 1 else name
