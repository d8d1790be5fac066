"""`keysift eval lm`: results of lm-eval tasks as a table and as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from keysift.cli.evaluation.flags import Lm
from keysift.cli.terminal import output
from keysift.core.disk import write_atomic
from keysift.core.errors import UnknownNameError, UnsupportedError
from keysift.core.registry import nearest


def run(args: Lm) -> None:
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise UnsupportedError("keysift eval lm needs lm-eval; install it with pip install 'keysift[lm]'") from error
    from keysift.hub.harness import evaluate, known_tasks

    check(args.tasks, known_tasks(args.include))
    results = evaluate(
        args.model,
        args.tasks,
        include=args.include,
        fewshot=args.fewshot,
        limit=args.limit,
        batch=args.batch,
        expand_windows=args.expand_windows,
    )
    # Besides numbers and strings, lm-eval returns objects of its own.
    data = json.loads(json.dumps({"model": args.model, "results": results}, default=str))
    if args.out is not None:
        write_atomic(args.out, json.dumps(data, indent=2) + "\n")
    if args.json:
        output.print_json(data)
        return
    table = output.table()
    for head in ("task", "metric", "value", "standard error"):
        table.add_column(head)
    for task, values in results.items():
        for row in _rows(task, values):
            table.add_row(*row)
    output.console().print(table)


def check(tasks: Sequence[str], known: list[str]) -> None:
    for name in tasks:
        if name not in known:
            raise UnknownNameError(
                f"lm-eval has no task {name!r}; {nearest(name, known)}to use your own task files, pass --include FOLDER"
            )


def _rows(task: str, values: dict[str, Any]) -> list[tuple[str, ...]]:
    """lm-eval names a value "metric,filter" and its error "metric_stderr,filter"."""
    rows: list[tuple[str, ...]] = []
    for key, value in values.items():
        metric, _, filter_name = key.partition(",")
        if isinstance(value, int | float) and filter_name and not metric.endswith("_stderr"):
            error = values.get(f"{metric}_stderr,{filter_name}")
            shown_error = f"{error:.4f}" if isinstance(error, float) else ""
            rows.append((task, metric, f"{value:.4f}", shown_error))
    return rows
