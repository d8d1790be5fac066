"""Tables of the study pages, as lines of Markdown."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from evidence.claims.groups import SeedGroup, best_groups
from evidence.claims.training_rules import MOST_EXCESS, RECALLED, sensitivity
from evidence.pages.figures import GAIN_RATIOS, LENGTHS
from evidence.runs import plan_of
from evidence.study import POSITIONS, Plan, Study
from keysift.core.markdown import table_head, table_row
from keysift.core.statistics import Sample, power_law_exponent

MATRIX = "q_proj"  # every model has this projection; Multiscreen and QK norm normalize its output


def measurement_tables(study: Study, groups: Sequence[SeedGroup]) -> list[str]:
    """The tables of the study's figure, then one row per model and rate."""
    best = choice(plan_of(study))
    by_figure: dict[str | None, Callable[[], list[str]]] = {
        "accuracy_by_length": lambda: _accuracy_by_length(groups, best),
        "loss_by_position": lambda: _loss_by_position(groups, best),
        "loss_by_rate": lambda: [*_sensitivity(groups), *_update_angles(groups)],
        "context_gain": lambda: [*_context_gain(groups, best), *_windows(groups)],
        "tokens_by_width": lambda: _tokens_by_width(groups, best),
        "loss_by_tokens": lambda: [*_loss_by_tokens(groups, best), *_windows(groups)],
    }
    lines = by_figure[study.page.figure]() if study.page.figure in by_figure else []
    with_accuracy = any(group.accuracies for group in groups)
    with_flops = any(record.flops_per_token is not None for group in groups for record in group.records)
    costs = ["minutes", *(["FLOPs"] if with_flops else [])]
    lines += [f"Every learning rate, mean and standard deviation over seeds; {' and '.join(costs)} are of one run:", ""]
    columns = "model", "parameters", "rate", "seeds", "diverged", *costs, "loss"
    lines += table_head(*columns, *(["accuracy"] if with_accuracy else []))
    for group in sorted(groups, key=lambda group: (group.label, group.parameters, group.rate)):
        parameters, rate, seeds = _sizes(group)
        cells = [_cell(group.losses, "{:.4f}"), *([_cell(group.accuracies, "{:.1%}")] if with_accuracy else [])]
        row = group.label, parameters, rate, seeds, str(group.diverged), *_cost(group)[: len(costs)], *cells
        lines.append(table_row(*row))
    return lines


def choice(plan: Plan) -> str:
    """How the learning rate of each model was chosen, as evidence.runs does it."""
    if plan.seeds_at == "all":
        return "Each model at its best learning rate (lowest mean validation loss over all seeds)"
    seeds = plan.choosing_seeds
    over = f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    what = f"accuracy at {plan.choose_at} times the training length" if plan.choose_at else "validation loss"
    fresh = ", which decide no claim" if plan.development_seeds else ""
    return f"Each model at its best learning rate (by {what} of {over}{fresh})"


def _accuracy_by_length(groups: Sequence[SeedGroup], best: str) -> list[str]:
    cells = [cell for group in groups for record in group.records for cell in record.measures.get("lengths", [])]
    needles = {length: max((c["total"] for c in cells if c["ratio"] == length), default=0) for length in LENGTHS}
    if any("depth" in cell for cell in cells):
        rows = (
            f"All seeds read the same rows, at most {max(needles.values())} per length and depth. Depths share their "
            f"rows, so the standard deviation does not include the variation between rows"
        )
    else:
        counts = ", ".join(f"{needles[length]} at {length}x" for length in LENGTHS if needles[length])
        rows = f"All seeds are tested on the same needles, each at its own position: {counts}"
    lines = [f"{best}. Share of needles retrieved, mean and standard deviation over seeds. {rows}:", ""]
    lengths = [length for length in LENGTHS if needles[length]]
    lines += table_head("model", "setting", "parameters", "rate", "seeds", *(f"{length}x" for length in lengths))
    for group in best_groups(groups):
        lines += _rows_by_setting(group, "lengths", group.accuracy_at, lengths, "{:.0%}")
    return [*lines, "", *_windows(groups)]


def _loss_by_position(groups: Sequence[SeedGroup], best: str) -> list[str]:
    caption = "Loss in nats per token by length of the context, in training lengths; mean and standard deviation"
    lines = [f"{best}. {caption} over seeds:", ""]
    lines += table_head("model", "setting", "parameters", "rate", "seeds", *(f"{context:g}x" for context in POSITIONS))
    for group in best_groups(groups):
        lines += _rows_by_setting(group, "positions", group.loss_at, POSITIONS, "{:.3f}")
    return [*lines, ""]


def _context_gain(groups: Sequence[SeedGroup], best: str) -> list[str]:
    caption = (
        "Loss of the same held-out tokens with the context cut to the training length, minus the loss with all of the "
        "context, in nats. Positive: the model uses what lies beyond its training length. Negative: it is harmed by "
        "it. Mean and standard deviation over seeds, by length"
    )
    lines = [f"{best}. {caption}:", ""]
    lines += table_head("model", "setting", "parameters", "rate", "seeds", *(f"{ratio}x" for ratio in GAIN_RATIOS))
    for group in best_groups(groups):
        lines += _rows_by_setting(group, "context_gain", group.context_gain_at, GAIN_RATIOS, "{:+.3f}")
    return [*lines, ""]


def _tokens_by_width(groups: Sequence[SeedGroup], best: str) -> list[str]:
    lines = [
        f"{best}. Share of random keys that the initial acceptance accepts, and training tokens until {RECALLED:.0%} "
        "of the validation rows are answered (mean and standard deviation over seeds, in millions; runs that end below "
        "count with all their tokens):",
        "",
        *table_head("model", "parameters", "rate", "seeds", "accepted at random", "tokens, millions", "ended below"),
    ]
    for group in best_groups(groups):
        tokens = group.tokens_until(RECALLED)
        if tokens is not None:
            millions = Sample(values=tuple(value / 1e6 for value in tokens.values))
            cells = f"{group.accepted_at_random:.1e}", _cell(millions, "{:.2f}"), str(group.never_reached(RECALLED))
            lines.append(table_row(group.label, *_sizes(group), *cells))
    return [*lines, ""]


def _loss_by_tokens(groups: Sequence[SeedGroup], best: str) -> list[str]:
    """Validation losses during training, one column per checkpoint."""
    shown = [group for group in best_groups(groups) if group.records[0].validations]
    steps = [int(step) for step, _ in shown[0].records[0].validations] if shown else []
    if len(steps) < 2:
        return []
    lines = [f"{best}. Validation loss after millions of tokens, mean over seeds:", ""]
    millions = [f"{step * int(shown[0].records[0].settings['batch_tokens']) / 1e6:.2g}" for step in steps]
    lines += table_head("model", *millions)
    for group in shown:
        curves = [{int(step): loss for step, loss in record.validations} for record in group.records if record.finished]
        means = [statistics.mean(curve[step] for curve in curves if step in curve) for step in steps]
        lines.append(table_row(group.label, *(f"{mean:.4f}" for mean in means)))
    return [*lines, ""]


def _sensitivity(groups: Sequence[SeedGroup]) -> list[str]:
    """Sensitivity to the learning rate, and the first rate whose loss is above the entropy of single tokens."""
    entropies = [point["nats"] for group in groups for r in group.records for point in r.measures.get("unigram", [])]
    if not entropies:
        return []
    lines = [
        f"Sensitivity: mean over rates of the final loss above that of the best rate, at most log 256 each. A model "
        f"that only counts bytes has a loss of {entropies[0]:.3f} nats; the last column is the first rate above the "
        f"best one whose mean loss exceeds it:",
        "",
        *table_head("model", "sensitivity, nats", "best rate", "fails from"),
    ]
    for name in dict.fromkeys(group.label for group in groups):
        own = sorted((group for group in groups if group.label == name), key=lambda group: group.rate)
        value = sensitivity(own)
        losses = {group.rate: statistics.mean(_loss_or_cap(r.val_loss) for r in group.records) for group in own}
        best = min(losses, key=losses.__getitem__)
        fails = next((f"{rate:g}" for rate, loss in losses.items() if rate > best and loss > entropies[0]), "none")
        lines.append(table_row(name, _cell(value, "{:.3f}"), f"{best:g}", fails))
    return [*lines, ""]


def _loss_or_cap(loss: float | None) -> float:
    """A non-finite loss counts as MOST_EXCESS, the loss of guessing among 256 bytes."""
    return MOST_EXCESS if loss is None or not math.isfinite(loss) else loss


def _rows_by_setting(
    group: SeedGroup, measure: str, read: Callable[[Any, str], Sample | None], columns: Sequence[float], form: str
) -> list[str]:
    return [
        table_row(group.label, setting, *_sizes(group), *(_cell(read(column, setting), form) for column in columns))
        for setting in group.settings(measure)
    ]


def _windows(groups: Sequence[SeedGroup]) -> list[str]:
    """The longest learned window of each run; nothing where windows were not measured."""
    lines = []
    for group in sorted(groups, key=lambda group: (group.label, group.rate)):
        measured = [record.measures["windows"] for record in group.records if record.measures.get("windows")]
        longest = [max(max(layer["windows"]) for layer in layers) for layers in measured]
        if longest:
            lines.append(table_row(group.label, f"{group.rate:g}", ", ".join(f"{window:,.0f}" for window in longest)))
    if not lines:
        return []
    return [
        "The longest learned window of each run, in tokens:",
        "",
        *table_head("model", "rate", "by seed"),
        *lines,
        "",
    ]


def _update_angles(groups: Sequence[SeedGroup]) -> list[str]:
    """Growth of the norm of the query projections, and the decrease of the update angle with the step."""
    lines = []
    for group in sorted(groups, key=lambda group: (group.label, group.rate)):
        growth, last, exponents = [], [], []
        for record in group.records:
            norms, angles = (_curve(record.curves, quantity) for quantity in ("norms", "angles"))
            if len(angles) < 4:
                continue
            growth.append(norms[-1][1] / norms[0][1])
            last.append(angles[-1][1])
            warmup = int(record.settings.get("warmup") or 0)
            exponents.append(power_law_exponent([(step, angle) for step, angle in angles if step > warmup]))
        if growth:
            means = statistics.mean(growth), statistics.mean(last), statistics.mean(exponents)
            cells = (f"{means[0]:.3g}x", f"{means[1]:.2g}", f"{means[2]:+.2f}")
            lines.append(table_row(group.label, f"{group.rate:g}", *cells))
    if not lines:
        return []
    caption = (
        "Query projections: growth of the norm, angle of the last update in radians, and the exponent p of a fit "
        "angle ~ step^p after warmup, where the rate is constant. For a matrix whose output is normalized, without "
        "weight decay, we expect p = -0.5 at every rate (our hypothesis):"
    )
    return [caption, "", *table_head("model", "rate", "norm", "last angle", "exponent"), *lines, ""]


def _curve(curves: dict[str, list[list[float]]], quantity: str) -> list[list[float]]:
    return next((points for name, points in curves.items() if name.startswith(quantity) and MATRIX in name), [])


def _sizes(group: SeedGroup) -> tuple[str, str, str]:
    return f"{group.parameters:,}", f"{group.rate:g}", str(len(group.records))


def _cost(group: SeedGroup) -> tuple[str, str]:
    """Training minutes and FLOPs of one run: the median over seeds, and empty where the FLOPs were not recorded."""
    flops = [record.flops_per_token * record.tokens for record in group.records if record.flops_per_token is not None]
    minutes = statistics.median(record.seconds for record in group.records) / 60
    return f"{minutes:.1f}", f"{statistics.median(flops):.2g}" if flops else ""


def _cell(values: Sample | None, form: str) -> str:
    if values is None:
        return ""
    spread = "" if values.std is None else f" ± {form.format(values.std)}"
    return form.format(values.mean) + spread
