"""Accuracy by context length as text, 80 columns wide: a chart and its numbers."""

from collections.abc import Sequence

from keysift.evaluate.measured import AS_TRAINED, Cell, Retrieval

WIDE, HIGH, LEFT = 70, 10, 6  # columns and rows of the plot, and columns before it


def series(records: Sequence[Retrieval]) -> dict[str, tuple[str, list[Cell]]]:
    """Letter and cells of each line: every model as trained, and at each length with the best of its settings."""
    found = {}
    for record in records:
        name, letter = record.subject.kind, record.subject.kind[0]
        found[f"{name}, as trained"] = (letter.upper(), [record.over_depths(n, AS_TRAINED) for n in record.lengths])
        others = [setting for setting in record.settings if setting != AS_TRAINED]
        if others:
            best = [
                max((record.over_depths(n, s) for s in others), key=lambda cell: cell.right) for n in record.lengths
            ]
            help_ = others[0] if len(others) == 1 else "best RoPE factor"
            found[f"{name}, {help_}"] = (letter.lower(), best)
    return found


def text_chart(records: Sequence[Retrieval]) -> str:
    """Letters where lines are: a model as trained in capitals. Where two meet, both stand side by side."""
    lines = series(records)
    lengths = records[0].lengths
    grid = [[" "] * WIDE for _ in range(HIGH + 1)]
    for letter, cells in lines.values():
        for at, cell in enumerate(cells):
            level, column = grid[HIGH - round(cell.accuracy * HIGH)], _column(at, len(lengths))
            while column < WIDE - 1 and level[column] != " ":
                column += 1
            level[column] = letter
    said = ["share of answers that were right"]
    for number, row in enumerate(grid):
        label = f"{100 * (HIGH - number) // HIGH}%" if number % 5 == 0 else ""
        said.append(f"{label:>{LEFT - 2}} |{''.join(row)}".rstrip())
    said.append(" " * (LEFT - 1) + "+" + "-" * WIDE)
    trained = records[0].subject.trained_length or lengths[0]
    axis = ""
    for at, length in enumerate(lengths):
        axis = axis.ljust(_column(at, len(lengths))) + f"{length // trained}x"
    said.append(" " * LEFT + axis)
    return "\n".join(said)


def table_of(records: Sequence[Retrieval]) -> str:
    rows = []
    for name, (letter, cells) in series(records).items():
        figures = "".join(f"{100 * cell.accuracy:4.0f}%" for cell in cells)
        rows.append(f"{letter} {name:<36}{figures}")
    return "\n".join(rows)


def _column(at: int, many: int) -> int:
    return 2 + at * (WIDE - 8) // max(1, many - 1)
