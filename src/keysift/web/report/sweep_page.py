"""Page of a sweep: results first, mean and spread over seeds, loss curves, and a table of every run."""

from collections.abc import Callable

from keysift.records.runs import ComparedRun, Comparison, RunGroup
from keysift.web.report.parts import columns_with_values, decimal, percent, side_by_side
from keysift.web.report.series import Palette, mean_line
from keysift.web.shared.page import page, safe, source, table
from keysift.web.shared.training_charts import Points, loss_lines, loss_points


def sweep_page(title: str, comparison: Comparison) -> str:
    """Return the page of several runs. Lines have the order of the table, best first."""
    runs = comparison.runs
    best = next((index for index, run in enumerate(runs) if run.best), None)
    run_columns = ("run", "validation", "accuracy", "bits/byte", "loss", "parameters", "state", "step", "directory")
    run_table = table(*columns_with_values(run_columns, [*map(_run_row, runs)]), best=best)
    body = f"<h1>{safe(title)}</h1>\n"
    if comparison.groups:
        group_columns = ("runs", "validation", "std", "accuracy", "seeds", "parameters")
        rows = [*map(_group_row, comparison.groups)]
        body += f"<h2>Mean over seeds, best first</h2>\n{table(*columns_with_values(group_columns, rows), best=0)}\n"
        body += _charts(comparison)
        body += f"<h2>All runs, best first</h2>\n{run_table}\n"
    else:
        body += f"<h2>All runs, best first</h2>\n{run_table}\n{_charts(comparison)}"
    if comparison.fields:
        settings = ((run.label.name, run.model, run.seed, *run.differs.values()) for run in runs)
        columns = ("run", "model", "seed", *comparison.fields)
        body += f"<details><summary>Settings that differ</summary>\n{table(columns, settings)}</details>\n"
    return page(title, f"<main>\n{body}</main>\n", source("report/report.css"))


def _charts(comparison: Comparison) -> str:
    """Validation and training loss side by side: one line per group, with the spread over its seeds."""
    curves: tuple[tuple[str, Callable[[ComparedRun], Points]], ...] = (
        ("Validation loss", lambda run: run.validations),
        ("Training loss", lambda run: loss_points(run.losses)),
    )
    palette = Palette.of(run.label for run in comparison.runs)
    parts = []
    for title, points in curves:
        groups: dict[str, list[Points]] = {}
        for run in comparison.runs:
            if curve := points(run):
                groups.setdefault(run.label.group, []).append(curve)
        lines = [mean_line(palette.group(group), group, members) for group, members in groups.items()]
        spread = any(len(members) > 1 for members in groups.values())
        caption = "Mean and standard deviation over seeds." if spread else ""
        drawing = f"<h2 class='title'>{title}</h2>\n<div class='drawing'>{loss_lines(lines)}</div>"
        parts.append(f"<figure>\n{drawing}<figcaption>{caption}</figcaption>\n</figure>\n")
    return side_by_side(parts)


def _group_row(group: RunGroup) -> tuple[str, ...]:
    return (
        group.label,
        decimal(group.val_losses.mean),
        decimal(group.val_losses.std),
        "" if group.accuracy is None else percent(group.accuracy),
        str(len(group.val_losses)),
        f"{group.parameters:,}",
    )


def _run_row(run: ComparedRun) -> tuple[str, ...]:
    return (
        run.label.name,
        decimal(run.validation),
        "" if run.accuracy is None else percent(run.accuracy),
        decimal(run.bits_per_byte),
        decimal(run.loss),
        f"{run.parameters:,}",
        run.state,
        f"{run.step}/{run.steps}" if run.steps else str(run.step),
        run.name,
    )
