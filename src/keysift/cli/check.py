"""Check a mechanism: every promise, gradient and backend, with a counterexample for what its spec has wrong."""

from typing import Annotated, Any

import tyro

from keysift.core.config import config, to_dict
from keysift.core.shown import styled


@config
class Args:
    name: Annotated[str, tyro.conf.Positional]
    """The mechanism: any known name, name+wrapper, or one of your own with --plugin MODULE."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> int:
    """1 where something disagrees with the spec."""
    from keysift.cli import output
    from keysift.evaluate.check import check
    from keysift.mechanisms import find

    found = check(find(args.name))
    if args.json:
        output.print_json({"right": found.right, **to_dict(found)})
        return 0 if found.right else 1
    for title, lines in (
        ("promises", found.promises),
        ("gradients", found.gradients),
        ("backends", found.backends),
    ):
        _show(title, lines)
    wrong = [line for lines in (found.promises, found.gradients, found.backends) for line in lines if not line.right]
    if not wrong:
        output.print_plain(f"\n{found.mechanism}: the spec is right.")
        return 0
    output.print_plain(f"\n{found.mechanism}: {len(wrong)} of its claims wrong.")
    for line in wrong:
        output.print_plain(f"\n{line.name}: the spec says {line.says}, found: {line.found}\n  {line.example}")
    return 1


def _show(title: str, lines: tuple[Any, ...]) -> None:
    from keysift.cli import output

    console = output.console()
    console.print(title, style="bold")
    for line in lines:
        sign = ("right", "green") if line.right else ("WRONG", "bold red")
        label = line.name.replace("_", " ")
        console.print(styled("  ", sign, f"  {label:<28} {line.found}"), soft_wrap=True)
