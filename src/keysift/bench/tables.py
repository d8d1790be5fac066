"""Tables of a benchmark's result: Markdown for the documentation, cells for the terminal."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from keysift.core.markdown import table_head, table_row
from keysift.core.number import number, time
from keysift.core.provenance import Machine
from keysift.records.bench import Result, Row, Target


def verdict(target: Target) -> str:
    return {True: "met", False: "missed", None: "other size"}[target.met]


def measured(target: Target) -> tuple[str, str]:
    """The measured value and the target, as text."""
    unit = f" {target.unit}" if target.unit not in ("", "x") else target.unit
    return f"{number(target.value)}{unit}", f"{target.bound} {target.target:g}{unit}"


@dataclass(frozen=True)
class Column:
    """A column of the table of times. A table shows the columns that some row fills."""

    head: str
    of: Callable[[Row], str]


def _speedup(row: Row) -> str:
    if row.speedup is None:
        return ""
    median = f"{number(row.speedup.median)}x"
    if row.speedup.low == row.speedup.high:
        return median  # one round
    return f"{median} ({number(row.speedup.low)} to {number(row.speedup.high)})"


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


def summary(result: Result) -> list[str]:
    """Lines of the table of targets, and of the notes."""
    lines = []
    if result.targets:
        rows = ((target.name, *measured(target), f"**{verdict(target)}**") for target in result.targets)
        lines += [*_table(("target", "measured", "required", ""), rows), ""]
    return [*lines, *(f"- {note}" for note in result.notes)]


def markdown(result: Result) -> str:
    """Tables of targets, machine and all rows."""
    lines = [*summary(result)]
    lines += ["", *_table(("machine", ""), _machine(result)), ""]
    columns = [column for column in COLUMNS if any(column.of(row) for row in result.rows)]
    heads = tuple(column.head for column in columns)
    lines += _table(heads, (tuple(column.of(row) for column in columns) for row in result.rows))
    notes = {row.note: None for row in result.rows if row.note}
    return "\n".join([*lines, *(f"\n{row_note}." for row_note in notes)])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [*table_head(*heads), *(table_row(*cells) for cells in rows)]


def machine_line(machine: Machine) -> str:
    """The machine in one line, for a terminal."""
    line = f"{machine.cpu}, {machine.threads} threads, {machine.instruction_set}, torch {machine.torch}, "
    line += f"load {machine.load:g} before"
    if machine.sgemm_gflops and machine.read_gb_per_s:
        line += f"; sgemm {machine.sgemm_gflops:g} GFLOP/s, reads {machine.read_gb_per_s:g} GB/s"
    return line


def _machine(result: Result) -> list[tuple[str, str]]:
    machine = result.machine
    rows = [
        ("processor", f"{machine.cpu}, {machine.cores} cores, {machine.memory_gb:g} GB"),
        ("threads", f"{machine.threads}"),
        ("kernel variant", machine.instruction_set),
    ]
    if machine.sgemm_gflops and machine.read_gb_per_s:
        rows.append(("sgemm peak", f"{number(machine.sgemm_gflops)} GFLOP/s"))
        rows.append(("read peak", f"{number(machine.read_gb_per_s)} GB/s"))
    return [
        *rows,
        ("load before", f"{machine.load:g}"),
        ("software", f"keysift {machine.keysift}, torch {machine.torch}, Python {machine.python}"),
        ("commit", f"`{machine.commit}`"),
        ("command", f"`{result.command}`, {result.date}"),
    ]


def _share(share: float | None) -> str:
    return "" if share is None else f"{number(100 * share)}%"
