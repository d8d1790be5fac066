"""What a benchmark found, as Markdown tables and as one SVG plot."""

import math
from collections.abc import Iterable
from html import escape

from keysift.evaluate.performance import Machine, Performance, Row, Spread, Target

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 250, 40, 50
_COLOURS = ("#3b6fb6", "#2f9e6e", "#c8402f", "#8a6d3b")
Points = dict[int, float]


def number(value: float) -> str:
    """Three digits, never an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{number(seconds / size)} {unit}"
    return f"{number(seconds / 1e-6)} µs"


def verdict(target: Target) -> str:
    return {True: "met", False: "missed", None: "other size"}[target.met]


def speed(row: Row) -> tuple[str, ...]:
    """T, tiles, window, r, step, ours, against, speedup, as text."""
    speedup = "" if row.speedup is None else f"{number(row.speedup.median)}x ({_quartiles(row.speedup)})"
    against = "" if row.their_seconds is None else f"{row.against}: {time(row.their_seconds.median)}"
    width = "learned" if row.acceptance is None else f"{row.acceptance:g}"
    return f"{row.tokens:,}", f"{row.tiles}", row.window, width, row.step, time(row.seconds.median), against, speedup


def _quartiles(spread: Spread) -> str:
    return f"{number(spread.low)} to {number(spread.high)}"


def markdown(found: Performance) -> str:
    """Targets, machine and every row."""
    lines = [*_table(("target", "measured", "wanted", ""), (_target(target) for target in found.targets)), ""]
    lines += [f"- {note}" for note in found.notes]
    lines += ["", *_table(("machine", ""), _machine(found)), ""]
    heads = ("T", "tiles", "window", "r", "step", "ours", "against", "speedup (quartiles)", "sgemm peak", "read peak")
    lines += _table(heads, ((*speed(row), _share(row.sgemm_share), _share(row.read_share)) for row in found.rows))
    notes = {row.note: None for row in found.rows if row.note}
    return "\n".join([*lines, *(f"\n{row_note}." for row_note in notes)])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ("---",) * len(heads), *rows)]


def _target(target: Target) -> tuple[str, ...]:
    unit = f" {target.unit}" if target.unit not in ("", "x") else target.unit
    return (
        target.name,
        f"{number(target.value)}{unit}",
        f"{target.bound} {target.target:g}{unit}",
        f"**{verdict(target)}**",
    )


def _machine(found: Performance) -> list[tuple[str, str]]:
    machine: Machine = found.machine
    return [
        ("processor", f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb:g} GB"),
        ("threads", f"{machine.threads}"),
        ("kernel variant", machine.instruction_set),
        ("sgemm peak", f"{number(machine.sgemm_gflops)} GFLOP/s"),
        ("read peak", f"{number(machine.read_gb_per_s)} GB/s"),
        ("load before", f"{machine.load:g}"),
        ("software", f"keysift {machine.keysift}, torch {machine.torch}, Python {machine.python}"),
        ("commit", f"`{machine.commit}`"),
        ("command", f"`{found.command}`, {found.date}"),
    ]


def _share(share: float | None) -> str:
    return "" if share is None else f"{number(100 * share)}%"


def curves(found: Performance) -> dict[str, Points]:
    """Seconds over T of everybody's forward pass, at the width all of them ran."""
    forward = [row for row in found.rows if row.step == "forward"]
    compared = {row.tiles for row in forward if row.window == "infinite"}
    lines: dict[str, Points] = {}
    for row in forward:
        if row.tiles not in compared or row.acceptance != 0.5:
            continue
        ours = "screening, no window" if row.window == "infinite" else f"screening, windows {row.window}"
        lines.setdefault(ours, {}).setdefault(row.tokens, row.seconds.median)
        if row.their_seconds is not None:
            lines.setdefault(row.against, {}).setdefault(row.tokens, row.their_seconds.median)
    return {name: dict(sorted(points.items())) for name, points in lines.items()}


def plot(found: Performance) -> str:
    """Seconds over length, both logarithmic, as SVG that needs nothing but a viewer."""
    lines = curves(found)
    lengths = sorted({tokens for points in lines.values() for tokens in points})
    times = [seconds for points in lines.values() for seconds in points.values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    span = max(math.log2(lengths[-1] / lengths[0]), 1.0)

    def x(tokens: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log2(tokens / lengths[0]) / span

    def y(seconds: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - math.log10(seconds)) / max(high - low, 1)

    marks = [_text(_LEFT, 22, "Seconds of one forward pass over tokens; both axes logarithmic", "start")]
    for power in range(low, high + 1):
        level = y(10.0**power)
        marks.append(_line(_LEFT, level, _WIDTH - _RIGHT, level))
        marks.append(_text(_LEFT - 8, level + 4, time(10.0**power), "end"))
    for tokens in lengths:
        marks.append(_line(x(tokens), _TOP, x(tokens), _HEIGHT - _BOTTOM))
        marks.append(_text(x(tokens), _HEIGHT - _BOTTOM + 18, f"{tokens:,}", "middle"))
    for place, (name, points) in enumerate(sorted(lines.items(), key=lambda line: -max(line[1].values()))):
        marks.append(_curve([(x(tokens), y(seconds)) for tokens, seconds in points.items()], _COLOURS[place % 4]))
        marks.append(_legend(place, name))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' "
        f"height='{_HEIGHT}' role='img' aria-label='seconds of a forward pass over tokens' "
        f"font-family='system-ui, sans-serif' font-size='12' fill='#1d2433'>\n"
        f"<rect width='{_WIDTH}' height='{_HEIGHT}' fill='#fbfbf9'/>\n" + "\n".join(marks) + "\n</svg>\n"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='#d6d9e0'/>"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def _curve(points: list[tuple[float, float]], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'/>" for x, y in points)
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>{dots}"


def _legend(place: int, name: str) -> str:
    x, y = _WIDTH - _RIGHT + 20, _TOP + 20 + 24 * place
    return f"<circle cx='{x}' cy='{y - 4}' r='5' fill='{_COLOURS[place % 4]}'/>" + _text(x + 12, y, name, "start")
