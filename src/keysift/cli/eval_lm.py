"""`keysift eval lm`: a model on the tasks of lm-eval, as a table and as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from keysift.cli import output
from keysift.cli.eval import Lm
from keysift.core.disk import write_whole
from keysift.core.errors import UnknownNameError, UnsupportedError
from keysift.core.registry import nearest


def run(do: Lm) -> None:
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("keysift eval lm needs lm-eval; install it with pip install 'keysift[lm]'") from error
    from keysift.hub.harness import evaluate, known_tasks

    check(do.tasks, known_tasks(do.include))
    found = evaluate(
        do.model,
        do.tasks,
        include=do.include,
        fewshot=do.fewshot,
        limit=do.limit,
        batch=do.batch,
        expand_windows=do.expand_windows,
    )
    # lm-eval's values are numbers, texts and a few objects of its own.
    told = json.loads(json.dumps({"model": do.model, "results": found}, default=str))
    if do.out is not None:
        write_whole(do.out, json.dumps(told, indent=2) + "\n")
    if do.json:
        output.print_json(told)
        return
    table = output.table()
    for head in ("task", "metric", "value", "standard error"):
        table.add_column(head)
    for task, values in found.items():
        for row in _rows(task, values):
            table.add_row(*row)
    output.console().print(table)


def check(tasks: Sequence[str], known: list[str]) -> None:
    for name in tasks:
        if name not in known:
            raise UnknownNameError(
                f"lm-eval knows no task {name!r}; {nearest(name, known)}"
                f"for a task file of your own pass --include FOLDER"
            )


def _rows(task: str, values: dict[str, Any]) -> list[tuple[str, ...]]:
    """lm-eval keys are "metric,filter", and "metric_stderr,filter" beside it."""
    rows: list[tuple[str, ...]] = []
    for key, value in values.items():
        metric, _, which = key.partition(",")
        if isinstance(value, int | float) and which and not metric.endswith("_stderr"):
            error = values.get(f"{metric}_stderr,{which}")
            spread = f"{error:.4f}" if isinstance(error, float) else ""
            rows.append((task, metric, f"{value:.4f}", spread))
    return rows
