"""List the mechanisms and what each promises."""

from typing import Annotated, Any

import tyro

from keysift.core.config import config


@config
class Args:
    name: Annotated[str | None, tyro.conf.Positional] = None
    """Show one mechanism: formula, scalars, promises with reasons."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.mechanisms import MECHANISMS, find

    chosen = list(MECHANISMS) if args.name is None else [find(args.name)]
    if args.json:
        output.print_json([describe(mechanism) for mechanism in chosen])
    elif args.name is None:
        _table(chosen)
    else:
        _page(chosen[0])


def describe(mechanism: Any) -> dict[str, Any]:
    from keysift.mechanisms.spec import Promise

    return {
        "name": mechanism.name,
        "title": mechanism.title,
        "source": mechanism.source,
        "formula": mechanism.formula,
        "scalars": [
            {"name": scalar.name, "meaning": scalar.meaning, "per": scalar.per.name.lower(), "learned": scalar.learned}
            for scalar in mechanism.scalars
        ],
        "promises": {p.name.lower(): "holds" if p in mechanism.holds else "refuted" for p in Promise},
        "notes": {p.name.lower(): note for p, note in mechanism.notes.items()},
    }


def _table(chosen: list[Any]) -> None:
    from keysift.cli import output
    from keysift.mechanisms.spec import Promise

    console = output.console()
    table = output.table("What each mechanism promises (●: proven by the tests, ·: refuted by them)")
    table.add_column("mechanism", no_wrap=True)
    for number, _ in enumerate(Promise, 1):
        table.add_column(str(number), justify="center")
    for mechanism in chosen:
        table.add_row(mechanism.name, *("●" if p in mechanism.holds else "·" for p in Promise))
    console.print(table)
    for number, promise in enumerate(Promise, 1):
        console.print(f"{number:>2}  {promise.value}", soft_wrap=True)
    console.print("\nOne in full: keysift mechanisms screening", soft_wrap=True)


def _page(mechanism: Any) -> None:
    from keysift.cli import output
    from keysift.mechanisms.spec import Promise

    console = output.console()
    console.print(f"[bold]{mechanism.title}[/bold]  ({mechanism.name})", soft_wrap=True)
    console.print(f"{mechanism.formula}\n{mechanism.source}\n", markup=False, soft_wrap=True)
    for scalar in mechanism.scalars:
        per = scalar.per.name.lower().replace("_", " and ")
        kind = "learned" if scalar.learned else "constant"
        console.print(f"{scalar.name}: {scalar.meaning} ({kind}, per {per})", markup=False, soft_wrap=True)
    console.print()
    for promise in Promise:
        sign = "[green]holds  [/green]" if promise in mechanism.holds else "[dim]refuted[/dim]"
        note = f" ({mechanism.notes[promise]})" if promise in mechanism.notes else ""
        console.print(f"{sign}  {promise.value}{note}", soft_wrap=True)
