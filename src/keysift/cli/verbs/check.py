"""Check a mechanism: every promise, gradient and backend, with a counterexample for each wrong claim of its spec.

Without a name, measure the rounding errors of every mechanism on every backend.
"""

from typing import Annotated, Any

import tyro

from keysift.core.config import config, to_dict
from keysift.core.terminal import styled


@config
class Args:
    name: Annotated[str | None, tyro.conf.Positional] = None
    """The mechanism: any known name, name+wrapper, or one of your own with --plugin MODULE. If omitted, the rounding
    errors of every mechanism on every backend are measured."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    """Returns 1 if any claim of the spec is wrong."""
    from keysift.cli.terminal import output
    from keysift.mechanisms import find
    from keysift.verify.check import check

    if args.name is None:
        return _check_exactness(json=args.json)
    report = check(find(args.name))
    if args.json:
        output.print_json({"correct": report.correct, **to_dict(report)})
        return 0 if report.correct else 1
    for title, lines in (
        ("promises", report.promises),
        ("gradients", report.gradients),
        ("backends", report.backends),
    ):
        _show(title, lines)
    wrong = [
        line for lines in (report.promises, report.gradients, report.backends) for line in lines if not line.correct
    ]
    if not wrong:
        output.print_plain(f"\n{report.mechanism}: the spec is right.")
        return 0
    output.print_plain(f"\n{report.mechanism}: {len(wrong)} claims are wrong.")
    for line in wrong:
        output.print_plain(f"\n{line.name}: the spec states {line.stated}, observed: {line.observed}\n  {line.example}")
    return 1


def _show(title: str, lines: tuple[Any, ...]) -> None:
    from keysift.cli.terminal import output

    console = output.console()
    console.print(title, style="bold")
    for line in lines:
        sign = ("right", "green") if line.correct else ("WRONG", "bold red")
        label = line.name.replace("_", " ")
        console.print(styled("  ", sign, f"  {label:<28} {line.observed}"), soft_wrap=True)


def _check_exactness(*, json: bool) -> int:
    from keysift.cli.terminal import output
    from keysift.cli.terminal.progress import ProgressBar
    from keysift.verify.exactness import measure_exactness

    with ProgressBar() as bar:
        record = measure_exactness("keysift check --json", progress=bar.update)
    if json:
        output.print_json(record)
        return 0 if record.agrees else 1
    table = output.table()
    for title in ("mechanism", "backend", "largest error", "error of plain torch", "tensor, queries x keys"):
        table.add_column(title, justify="right" if "error" in title else "left")
    for row in record.rows:
        errors = f"{row.error:.1e}", f"{row.plain:.1e}"
        table.add_row(row.mechanism, row.backend, *errors, row.tensor, style=None if row.agrees else "bold red")
    output.console().print(table)
    output.print_plain(
        f"fp32 errors relative to the largest entry; {'all agree' if record.agrees else 'SOME DISAGREE'} with the fp64 "
        f"definition within twice the error of plain torch, plus rounding"
    )
    return 0 if record.agrees else 1
