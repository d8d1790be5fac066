"""What a benchmark found, as Markdown tables and as one SVG plot."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

from keysift.bench.record import Result, Row, Target
from keysift.core.provenance import Machine

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


def measured(target: Target) -> tuple[str, str]:
    """What came out and what was wanted."""
    unit = f" {target.unit}" if target.unit not in ("", "x") else target.unit
    return f"{number(target.value)}{unit}", f"{target.bound} {target.target:g}{unit}"


@dataclass(frozen=True)
class Column:
    """One column of the table of times; a table shows those that some row fills."""

    head: str
    of: Callable[[Row], str]


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return ""
    return f"{number(row.speedup.median)}x ({number(row.speedup.low)} to {number(row.speedup.high)})"


COLUMNS = (
    Column("tokens", lambda row: f"{row.tokens:,}"),
    Column("what", lambda row: row.what),
    Column("setting", lambda row: row.setting),
    Column("step", lambda row: row.step),
    Column("time", lambda row: time(row.seconds.median)),
    Column(
        "against", lambda row: "" if row.their_seconds is None else f"{row.against}: {time(row.their_seconds.median)}"
    ),
    Column("speedup (quartiles)", _speedup),
    Column("sgemm peak", lambda row: _share(row.sgemm_share)),
    Column("read peak", lambda row: _share(row.read_share)),
    Column("tokens/s", lambda row: "" if row.tokens_per_s is None else number(row.tokens_per_s)),
    Column("MB/s", lambda row: "" if row.mb_per_s is None else number(row.mb_per_s)),
    Column("extra memory", lambda row: "" if row.extra_mb is None else f"{number(row.extra_mb)} MB"),
    Column("cache", lambda row: "" if row.cache_bytes is None else f"{row.cache_bytes:,} bytes"),
)


def markdown(found: Result) -> str:
    """Targets, machine and every row."""
    lines = []
    if found.targets:
        rows = ((target.name, *measured(target), f"**{verdict(target)}**") for target in found.targets)
        lines += [*_table(("target", "measured", "wanted", ""), rows), ""]
    lines += [f"- {note}" for note in found.notes]
    lines += ["", *_table(("machine", ""), _machine(found)), ""]
    columns = [column for column in COLUMNS if any(column.of(row) for row in found.rows)]
    heads = tuple(column.head for column in columns)
    lines += _table(heads, (tuple(column.of(row) for column in columns) for row in found.rows))
    notes = {row.note: None for row in found.rows if row.note}
    return "\n".join([*lines, *(f"\n{row_note}." for row_note in notes)])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ("---",) * len(heads), *rows)]


def machine_line(machine: Machine) -> str:
    """The machine in one line, for a terminal."""
    line = f"{machine.cpu}, {machine.threads} threads, {machine.instruction_set}, torch {machine.torch}, "
    line += f"load {machine.load:g} before"
    if machine.sgemm_gflops and machine.read_gb_per_s:
        line += f"; sgemm {machine.sgemm_gflops:g} GFLOP/s, reads {machine.read_gb_per_s:g} GB/s"
    return line


def _machine(found: Result) -> list[tuple[str, str]]:
    machine = found.machine
    facts = [
        ("processor", f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb:g} GB"),
        ("threads", f"{machine.threads}"),
        ("kernel variant", machine.instruction_set),
    ]
    if machine.sgemm_gflops and machine.read_gb_per_s:
        facts.append(("sgemm peak", f"{number(machine.sgemm_gflops)} GFLOP/s"))
        facts.append(("read peak", f"{number(machine.read_gb_per_s)} GB/s"))
    return [
        *facts,
        ("load before", f"{machine.load:g}"),
        ("software", f"keysift {machine.keysift}, torch {machine.torch}, Python {machine.python}"),
        ("commit", f"`{machine.commit}`"),
        ("command", f"`{found.command}`, {found.date}"),
    ]


def _share(share: float | None) -> str:
    return "" if share is None else f"{number(100 * share)}%"


def curves(found: Result) -> dict[str, Points]:
    """Seconds over T of everybody's forward pass, at the setting most rows share."""
    forward = [row for row in found.rows if row.step == "forward"]
    lines: dict[str, Points] = {}
    if not forward:
        return lines
    common = Counter(row.setting for row in forward).most_common(1)[0][0]
    for row in forward:
        if row.setting != common:
            continue
        lines.setdefault(row.what, {}).setdefault(row.tokens, row.seconds.median)
        if row.their_seconds is not None:
            lines.setdefault(row.against, {}).setdefault(row.tokens, row.their_seconds.median)
    return {name: dict(sorted(points.items())) for name, points in lines.items() if len(points) > 1}


def plot(found: Result) -> str:
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
