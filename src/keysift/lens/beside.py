"""Models side by side, from what `keysift compare --json` printed: python -m keysift.lens.beside RECORDS.json

No torch: plain data in, Markdown out.
"""

import sys
from collections.abc import Sequence

from keysift.core.shown import shown_text
from keysift.lens.findings import mean
from keysift.lens.record import Record, load_all

# Mean over heads, for models side by side.
COMPARED = (
    ("effective_keys", "effective keys of a row"),
    ("largest_weight", "largest weight, as a share of the mass"),
    ("fading_exponent", "fading exponent of the largest weight"),
    ("first_mass", "share of the mass on the first key"),
    ("row_mass", "sum of a row's weights"),
    ("accepted_share", "share of visible keys that is accepted"),
    ("refuses_all", "rows that accept nothing"),
    ("left_out_moved", "change of the other weights when the brightest key leaves"),
    ("left_out_output", "relative change of the output when it leaves"),
    ("only_relatively_bright", "bright keys that are only relatively bright"),
)


def side_by_side(records: Sequence[Record]) -> str:
    def line(title: str, values: Sequence[float | None]) -> str:
        return f"| {title} | {' | '.join(map(_shown, values))} |"

    names = [record.model.name for record in records]
    lines = [f"| mean over heads | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    lines.append(line("parameters", [record.model.parameters for record in records]))
    losses = [sum(text.loss for text in record.texts) / len(record.texts) for record in records]
    lines.append(line("loss, nats a token", losses))
    lines += [line(title, [mean(record.heads, name) for record in records]) for name, title in COMPARED]
    lines.append(line("dilution exponent", [_diluted(record) for record in records]))
    lines.append(line("loss without the brightest keys", [r.tests["leave_out"]["brightest"] for r in records]))
    fewest = [record.tests["functional"]["deletion"]["smallest"]["0.05"] for record in records]
    lines.append(line("fewest keys within 5% of the loss", fewest))
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _diluted(record: Record) -> float | None:
    known = [row["exponent"] for row in record.tests["dilution"]["heads"] if row["exponent"] is not None]
    return sum(known) / len(known) if known else None


if __name__ == "__main__":
    sys.stdout.write(shown_text(side_by_side(load_all(sys.argv[1])) + "\n"))
