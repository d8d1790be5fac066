"""Compute the weights that mechanisms give to a row of scores."""

import math
from typing import Any

from keysift.core.config import config
from keysift.core.errors import RangeError


@config
class Args:
    scores: str
    """Scaled scores of the keys, separated by commas: 0.9,0.7,0.3. Screening takes cosines."""
    second: str | None = None
    """Scores of the second map, for mechanisms with two maps; by default all equal."""
    mechanism: tuple[str, ...] = ()
    """Names of mechanisms; by default all."""
    scalar: tuple[str, ...] = ()
    """Values of scalars as NAME=NUMBER: acceptance=0.3. Mechanisms without the scalar ignore it."""
    json: bool = False
    """Print JSON."""


def run(args: Args) -> None:
    scores = numbers("--scores", args.scores)
    second = None if args.second is None else numbers("--second", args.second)
    from keysift.cli.terminal import output
    from keysift.kernels.weigh import default_scalars
    from keysift.mechanisms import find
    from keysift.mechanisms.lookup import all_mechanisms

    chosen = [find(name) for name in args.mechanism] or all_mechanisms()
    given = _scalars(args.scalar, chosen)
    scalars = {
        mechanism.name: default_scalars(mechanism)
        | {scalar.name: given[scalar.name] for scalar in mechanism.scalars if scalar.name in given}
        for mechanism in chosen
    }
    weights: dict[str, list[float]] = {}
    errors: dict[str, str] = {}
    for mechanism in chosen:
        try:
            weights[mechanism.name] = _weights(mechanism, scores, second, scalars[mechanism.name])
        except RangeError as error:
            if len(chosen) == 1:
                raise
            errors[mechanism.name] = str(error)
    if args.json:
        output.print_json(
            {"scores": scores, "second": second, "scalars": scalars, "weights": weights, "refused": errors}
        )
        return
    _table(scores, weights, scalars)
    for reason in errors.values():
        output.print_plain(reason)


def _finite(text: str) -> float | None:
    """The finite number that the text names, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def numbers(flag: str, text: str) -> list[float]:
    values = [value for part in text.split(",") if (value := _finite(part)) is not None]
    if len(values) <= text.count(","):
        raise RangeError(
            f"{flag} must be finite numbers separated by commas, got {text!r}; write them like {flag} 2,1,0.5"
        )
    return values


def _scalars(assignments: tuple[str, ...], mechanisms: list[Any]) -> dict[str, float]:
    """The scalars given on the command line, by name."""
    known = sorted({scalar.name for mechanism in mechanisms for scalar in mechanism.scalars})
    given: dict[str, float] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        value = _finite(text)
        if name not in known or value is None:
            raise RangeError(
                f"--scalar must be NAME=NUMBER with a scalar of the chosen mechanisms and a finite number, "
                f"got {assignment!r}; the scalars are: {', '.join(known) or 'none'}"
            )
        given[name] = value
    return given


def _weights(mechanism: Any, scores: list[float], second: list[float] | None, scalars: dict[str, float]) -> list[float]:
    import torch

    from keysift.kernels.weigh import weigh

    x = torch.tensor(scores, dtype=torch.float64)
    y = None if second is None else torch.tensor(second, dtype=torch.float64)
    values: list[float] = weigh(mechanism, x, second=y, scalars=scalars).tolist()
    return values


def _table(scores: list[float], weights: dict[str, list[float]], scalars: dict[str, dict[str, float]]) -> None:
    from keysift.cli.terminal import output
    from keysift.core.number import number

    table = output.table()
    table.add_column("mechanism", no_wrap=True)
    for score in scores:
        table.add_column(f"{score:g}", justify="right")
    table.add_column("sum", justify="right", style="dim")
    table.add_column("scalars", style="dim")
    for name, row in weights.items():
        used = ", ".join(f"{scalar}={number(value)}" for scalar, value in scalars[name].items())
        table.add_row(name, *map(number, row), number(_sum(row)), used)
    output.console().print(table)


def _sum(weights: list[float]) -> float:
    """The sum, or exactly zero where positive and negative weights cancel up to rounding."""
    total = math.fsum(weights)
    return 0.0 if abs(total) < 2**-48 * math.fsum(map(abs, weights)) else total
