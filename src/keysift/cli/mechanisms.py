"""List the mechanisms and what each promises."""

from typing import Annotated, Any

import tyro

from keysift.core.config import config
from keysift.core.shown import styled


@config
class Args:
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Show these in full: formula, scalars, promises with reasons. Without a name: the table of all."""
    json: bool = False
    """Print JSON."""
    markdown: bool = False
    """Print a Markdown table, as in the documentation."""


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.mechanisms import MECHANISMS, find

    chosen = [find(name) for name in args.names] or list(MECHANISMS)
    if args.json:
        output.print_json([describe(mechanism) for mechanism in chosen])
    elif args.markdown:
        output.print_plain(_markdown_pages(chosen) if args.names else _markdown_table(chosen))
    elif args.names:
        for mechanism in chosen:
            _page(mechanism)
    else:
        _table(chosen)


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
    console.print(styled((mechanism.title, "bold"), f"  ({mechanism.name})"), soft_wrap=True)
    console.print(f"{mechanism.formula}\n{mechanism.source}\n", soft_wrap=True)
    for scalar in mechanism.scalars:
        per = scalar.per.name.lower().replace("_", " and ")
        kind = "learned" if scalar.learned else "constant"
        console.print(f"{scalar.name}: {scalar.meaning} ({kind}, per {per})", soft_wrap=True)
    console.print()
    for promise in Promise:
        sign = ("holds  ", "green") if promise in mechanism.holds else ("refuted", "dim")
        note = f" ({mechanism.notes[promise]})" if promise in mechanism.notes else ""
        console.print(styled(sign, f"  {promise.value}{note}"), soft_wrap=True)


def _markdown_table(chosen: list[Any]) -> str:
    from keysift.mechanisms.spec import Promise

    lines = [
        "| mechanism | " + " | ".join(promise.label for promise in Promise) + " |",
        "|---|" + ":-:|" * len(Promise),
    ]
    for mechanism in chosen:
        cells = " | ".join("●" if promise in mechanism.holds else "·" for promise in Promise)
        lines.append(f"| [`{mechanism.name}`](docs/mechanisms/{mechanism.page}.md) | {cells} |")
    return "\n".join(lines)


def _markdown_pages(chosen: list[Any]) -> str:
    """A page's facts: formulas, scalars and promises of its mechanisms, side by side."""
    from keysift.mechanisms.spec import Promise

    lines = [f"- `{m.name}`: {m.title}, `{m.formula}` ({m.source})" for m in chosen]
    scalars = {(s.name, s.meaning, s.per.name, s.learned): None for m in chosen for s in m.scalars}
    if scalars:
        lines += ["", "| scalar | what it is | per | learned |", "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {meaning} | {per.lower().replace('_', ' and ')} | {'yes' if learned else 'no'} |"
            for name, meaning, per, learned in scalars
        ]
    lines += ["", "| promise | " + " | ".join(f"`{m.name}`" for m in chosen) + " |", "|---|" + "---|" * len(chosen)]
    for promise in Promise:
        cells = (
            ("holds" if promise in m.holds else "refuted") + (f": {m.notes[promise]}" if promise in m.notes else "")
            for m in chosen
        )
        lines.append(f"| {promise.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
