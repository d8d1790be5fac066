"""Several runs on one page: validation and training loss over steps, mean and spread over seeds, and every run."""

from html import escape

from keysift.runs.compare import Compared, Comparison, Group
from keysift.web.curves import every_step, loss_chart
from keysift.web.page import page, table


def sweep_page(title: str, found: Comparison) -> str:
    """Curves are in the order of the table, best first; their values show on hover."""
    validation = {one.name: one.validations for one in found.runs if one.validations}
    training = {one.name: every_step(one.losses) for one in found.runs if one.losses}
    body = f"<h1>{escape(title)}</h1>\n<h2>Validation loss</h2>\n{loss_chart(validation)}\n"
    if found.groups:
        heads = ("model", *found.fields, "parameters", "validation", "spread", "accuracy", "seeds")
        body += f"<h2>Mean over seeds</h2>\n{table(heads, map(_group, found.groups), best=0)}\n"
    heads = ("run", "model", *found.fields, "seed", "parameters", "state", "step", "loss", "validation", "bits/byte")
    heads = (*heads, "accuracy")
    best = next((at for at, one in enumerate(found.runs) if one.best), None)
    body += f"<h2>Every run, best first</h2>\n{table(heads, map(_run, found.runs), best=best)}\n"
    return page(title, f"{body}<h2>Training loss</h2>\n{loss_chart(training)}\n")


def _group(one: Group) -> tuple[str, ...]:
    spread = "" if one.spread is None else f"{one.spread:.4f}"
    return (
        one.model,
        *one.differs.values(),
        f"{one.parameters:,}",
        f"{one.mean:.4f}",
        spread,
        _share(one.accuracy),
        str(one.seeds),
    )


def _run(one: Compared) -> tuple[str, ...]:
    figures = ("" if value is None else f"{value:.4f}" for value in (one.loss, one.validation, one.bits_per_byte))
    steps = f"{one.step}/{one.steps}" if one.steps else str(one.step)
    sizes = (one.seed, f"{one.parameters:,}", one.state, steps)
    return (one.name, one.model, *one.differs.values(), *sizes, *figures, _share(one.accuracy))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
