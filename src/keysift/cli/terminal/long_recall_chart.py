"""Recall in long texts as a text chart with a bar for each length and model, 80 columns wide, and its summary."""

from collections.abc import Sequence

from keysift.core.number import data_size
from keysift.core.statistics import power_law_exponent
from keysift.records.long_recall import LongCell, LongRecall

WIDE = 18  # characters of a bar


def long_chart(records: Sequence[LongRecall]) -> str:
    """One line per length and model, at its best setting. Times of lengths that were not measured start with ~."""
    lengths = sorted({length for record in records for length in record.lengths})
    rows = [f"{'tokens':>9}  {'model':<12}{'correct':<{WIDE + 6}}{'to read':>9}{'an answer':>12}  keys read"]
    for length in lengths:
        for record in records:
            cell = record.best(length) if length in record.lengths else None
            start = f"{length:>9,}  {record.subject.kind:<12}"
            if cell is None:
                read, answer = (extrapolated(record, name, length) for name in ("read_seconds", "answer_seconds"))
                bar = f"{'not measured':<{WIDE + 6}}"
                rows.append(f"{start}{bar}{'~' + _seconds(read):>9}{'~' + _seconds(answer):>12}")
                continue
            bar = f"{'#' * round(cell.accuracy * WIDE):<{WIDE}}{cell.accuracy:>5.0%} "
            times = f"{_seconds(cell.read_seconds):>9}{_seconds(cell.answer_seconds):>12}"
            rows.append(f"{start}{bar}{times}  {_share(cell)}".rstrip())
    return "\n".join(rows)


def extrapolated(record: LongRecall, name: str, length: int) -> float:
    """A time at a longer text, from its growth over the two longest ones that were measured. NaN with only one."""
    points = [(n, float(getattr(record.best(n), name))) for n in record.lengths[-2:]]
    last, seconds = points[-1]
    return float(seconds * (length / last) ** power_law_exponent(points))


def long_summary(records: Sequence[LongRecall]) -> list[str]:
    """One line for each model at its longest text."""
    lines = []
    for record in records:
        cell = record.best(record.lengths[-1])
        low, high = cell.interval
        line = (
            f"{record.subject.kind}, {record.subject.parameters:,} parameters, trained on "
            f"{record.subject.trained_length} tokens: {cell.correct} of {cell.total} correct at {cell.length:,} tokens "
            f"({low:.0%} to {high:.0%}; {cell.setting}; chance {record.chance:.0%}), "
            f"cache {data_size(cell.cache_bytes)}"
        )
        if cell.in_window is not None and cell.read is not None and cell.accepted is not None:
            line += f"; of {cell.in_window:,.0f} keys {cell.read:,.0f} were read and {cell.accepted:,.0f} accepted"
        lines.append(line)
    if len({record.lengths[-1] for record in records}) > 1:
        lines.append("~ is extrapolated from the growth of the two longest texts that were measured.")
    return lines


def _share(cell: LongCell) -> str:
    return f"{cell.read / cell.in_window:.2%}" if cell.read is not None and cell.in_window else "all"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 600 else f"{seconds / 60:.0f} min"
