"""List the mechanisms and their promises."""

import re
from typing import Annotated, Any

import tyro

from keysift.core.config import config
from keysift.core.markdown import table_head, table_row
from keysift.core.terminal import styled

EVERY = ("by_rows", "dense")  # backends that run every mechanism


@config
class Args:
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Mechanisms to show in detail: formula, scalars, promises with reasons. By default a table of all."""
    json: bool = False
    """Print JSON."""
    markdown: bool = False
    """Print Markdown, as in the documentation."""


def run(args: Args) -> None:
    from keysift.cli.terminal import output
    from keysift.mechanisms import find
    from keysift.mechanisms.lookup import all_mechanisms

    chosen = [find(name) for name in args.names] or all_mechanisms()
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
        "year": year(mechanism),
        "backends": backends(mechanism),
        "cache": cached(mechanism),
        "formula": mechanism.formula,
        "scalars": [
            {"name": scalar.name, "meaning": scalar.meaning, "per": scalar.per.name.lower(), "learned": scalar.learned}
            for scalar in mechanism.scalars
        ],
        "promises": {p.name.lower(): verdict(mechanism, p) for p in Promise},
        "notes": {p.name.lower(): note for p, note in mechanism.notes.items()},
    }


def year(mechanism: Any) -> int:
    """Year of the newest source."""
    papers = [2000 + int(digits) for digits in re.findall(r"arXiv:([0-9]{2})[0-9]{2}\.", mechanism.source)]
    dates = [int(digits) for digits in re.findall(r"\b(20[0-9]{2})\b(?!\.)", mechanism.source)]
    return max(papers + dates, default=0)


def backends(mechanism: Any) -> list[str]:
    """Backends for long texts in fp32, the preferred first. by_rows and dense run every mechanism."""
    import torch

    from keysift.kernels.attend import BACKENDS
    from keysift.kernels.call import make_call

    maps = (2 * mechanism.maps, 2 * mechanism.key_maps, 2)
    call = make_call(mechanism, *(torch.zeros(1).expand(1, heads, 1024, 8) for heads in maps))
    return [backend.name for backend in BACKENDS if backend.declines(call, False) is None]


def cached(mechanism: Any) -> str:
    """What a cache holds for each token."""
    keys = "k" if mechanism.key_maps == 1 else f"{mechanism.key_maps} k"
    per_key = [scalar.name for scalar in mechanism.scalars if "S" in scalar.per.value]
    return ", ".join([keys, "v", *per_key])


def verdict(mechanism: Any, promise: Any) -> str:
    """Result of the tests, for tested mechanisms; otherwise the claim of the spec."""
    from keysift.mechanisms import TESTED

    holds = promise in mechanism.holds
    if mechanism.name in TESTED:
        return "holds" if holds else "refuted"
    return "claimed" if holds else "not claimed"


def _untested(chosen: list[Any]) -> str | None:
    from keysift.mechanisms import TESTED

    names = [mechanism.name for mechanism in chosen if mechanism.name not in TESTED]
    if not names:
        return None
    return f"Claimed, not tested here: {', '.join(names)}. Run keysift check {names[0]}"


def _table(chosen: list[Any]) -> None:
    from keysift.cli.terminal import output
    from keysift.mechanisms import TESTED
    from keysift.mechanisms.spec import Promise

    console = output.console()
    table = output.table("Promises of each mechanism (●: holds in every test, ·: refuted by a test)")
    table.add_column("mechanism", no_wrap=True)
    for number, _ in enumerate(Promise, 1):
        table.add_column(str(number), justify="center")
    for mechanism in chosen:
        yes, no = ("●", "·") if mechanism.name in TESTED else ("○", " ")
        table.add_row(mechanism.name, *(yes if p in mechanism.holds else no for p in Promise))
    console.print(table)
    for number, promise in enumerate(Promise, 1):
        console.print(f"{number:>2}  {promise.value}", soft_wrap=True)
    console.print("\nDetails of a mechanism: keysift mechanisms screening", soft_wrap=True)
    untested = _untested(chosen)
    if untested is not None:
        output.print_plain(f"○ {untested}")


def _page(mechanism: Any) -> None:
    from keysift.cli.terminal import output
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
        result = verdict(mechanism, promise)
        style = {"holds": "green", "refuted": "dim"}.get(result, "yellow")
        note = f" ({mechanism.notes[promise]})" if promise in mechanism.notes else ""
        console.print(styled((f"{result:<11}", style), f"  {promise.value}{note}"), soft_wrap=True)
    untested = _untested([mechanism])
    if untested is not None:
        output.print_plain(f"\n{untested}")


def _markdown_table(chosen: list[Any]) -> str:
    from keysift.mechanisms.spec import Promise

    lines = table_head("mechanism", "source", "year", "promises 1 to 15", "backends", "a cache holds")
    for mechanism in chosen:
        promises = "".join("●" if promise in mechanism.holds else "·" for promise in Promise)
        groups = " ".join(promises[start : start + 5] for start in range(0, len(promises), 5))
        fast = [f"`{name}`" for name in backends(mechanism) if name not in EVERY]
        lines.append(
            table_row(
                f"[`{mechanism.name}`]({mechanism.page}.md)",
                mechanism.source,
                str(year(mechanism) or "-"),
                f"`{groups}`",
                ", ".join(fast) or "-",
                cached(mechanism),
            )
        )
    return "\n".join(
        [*lines, "", *(f"{i}. *{promise.label}*: {promise.value}" for i, promise in enumerate(Promise, 1))]
    )


def _markdown_pages(chosen: list[Any]) -> str:
    """Formulas, scalars and promises of the mechanisms of one documentation page."""
    from keysift.mechanisms.spec import Promise

    lines = [f"- `{m.name}`: {m.title}, `{m.formula}` ({m.source})" for m in chosen]
    scalars: dict[tuple[str, str, str, bool], list[str]] = {}
    for m in chosen:
        for s in m.scalars:
            scalars.setdefault((s.name, s.meaning, s.per.name, s.learned), []).append(f"`{m.name}`")
    if scalars:
        names = [name for name, *_ in scalars]
        lines += ["", *table_head("scalar", "meaning", "per", "learned")]
        for (name, meaning, per, learned), owners in scalars.items():
            # Mechanisms of one page may define scalars of the same name differently.
            of = f" of {', '.join(owners)}" if names.count(name) > 1 else ""
            per = per.lower().replace("_", " and ")
            lines.append(table_row(f"`{name}`{of}", meaning, per, "yes" if learned else "no"))
    lines += ["", *table_head("promise", *(f"`{m.name}`" for m in chosen))]
    for promise in Promise:
        cells = (verdict(m, promise) + (f": {m.notes[promise]}" if promise in m.notes else "") for m in chosen)
        lines.append(table_row(promise.value, *cells))
    return "\n".join(lines)
