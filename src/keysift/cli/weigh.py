"""What mechanisms make of a row of scores."""

import math
from typing import Any

from keysift.core.config import config
from keysift.core.errors import RangeError


@config
class Args:
    scores: str
    """Scores of the keys, already scaled, separated by commas: 0.9,0.7,0.3. Screening reads them as cosines."""
    second: str | None = None
    """Scores of the second map, for mechanisms that compare two; by default all equal."""
    mechanism: tuple[str, ...] = ()
    """Which mechanisms; by default all."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.mechanisms import find
    from keysift.mechanisms.lookup import everything

    scores = numbers("--scores", args.scores)
    second = None if args.second is None else numbers("--second", args.second)
    chosen = [find(name) for name in args.mechanism] or everything()
    found: dict[str, list[float]] = {}
    refused: dict[str, str] = {}
    for mechanism in chosen:
        try:
            found[mechanism.name] = _weights(mechanism, scores, second)
        except RangeError as error:
            if len(chosen) == 1:
                raise
            refused[mechanism.name] = str(error)
    if args.json:
        output.print_json({"scores": scores, "second": second, "weights": found, "refused": refused})
        return
    _table(scores, found)
    for reason in refused.values():
        output.print_plain(reason)


def numbers(flag: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise RangeError(
            f"{flag} must be finite numbers separated by commas, got {text!r}; write them like {flag} 2,1,0.5"
        )
    return values


def _weights(mechanism: Any, scores: list[float], second: list[float] | None) -> list[float]:
    import torch

    from keysift.kernels.weigh import weigh

    x = torch.tensor(scores, dtype=torch.float64)
    y = None if second is None else torch.tensor(second, dtype=torch.float64)
    values: list[float] = weigh(mechanism, x, second=y).tolist()
    return values


def _table(scores: list[float], found: dict[str, list[float]]) -> None:
    from keysift.cli import output
    from keysift.web.number import number

    table = output.table()
    table.add_column("mechanism", no_wrap=True)
    for score in scores:
        table.add_column(f"{score:g}", justify="right")
    table.add_column("sum", justify="right", style="dim")
    for name, row in found.items():
        table.add_row(name, *map(number, row), number(sum(row)))
    output.console().print(table)
