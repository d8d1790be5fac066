"""What a benchmark found, as Markdown tables and as one SVG plot."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from keysift.bench.record import Result, Row, Target
from keysift.core.provenance import Machine
from keysift.web.chart import Axis, Line, as_file, chart
from keysift.web.number import length, number, time, time_tick

PLOT = "seconds of a forward pass over tokens, both axes logarithmic"
MOST_LINES = 12  # more cannot be told apart
Points = dict[int, float]


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
    said = f"{number(row.speedup.median)}x"
    if row.speedup.low == row.speedup.high:
        return said  # one round
    return f"{said} ({number(row.speedup.low)} to {number(row.speedup.high)})"


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
    several = {name: dict(sorted(points.items())) for name, points in lines.items() if len(points) > 1}
    return several if len(several) <= MOST_LINES else {}


def plot(found: Result) -> str:
    """Seconds over length, both logarithmic, as an SVG file."""
    by_slowest = sorted(curves(found).items(), key=lambda line: -max(line[1].values()))
    lines = [Line(name, list(points.items())) for name, points in by_slowest]
    return as_file(
        chart(PLOT, lines, x=Axis("tokens", log=True, show=length), y=Axis("forward pass", log=True, show=time_tick))
    )
