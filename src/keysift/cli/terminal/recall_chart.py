"""Accuracy by context length as a text chart and a table, 80 columns wide."""

from collections.abc import Sequence

from keysift.records.evaluation import AS_TRAINED, Cell, Retrieval

WIDE, HIGH, LEFT = 70, 10, 6  # columns and rows of the plot, and columns before it


def series(records: Sequence[Retrieval]) -> dict[str, tuple[str, list[Cell]]]:
    """Letter and cells of each line: every model as trained, and with its best other setting at each length."""
    lines = {}
    for record in records:
        name, letter = record.subject.kind, record.subject.kind[0]
        lines[f"{name}, {AS_TRAINED}"] = (letter.upper(), [record.over_depths(n, AS_TRAINED) for n in record.lengths])
        others = [setting for setting in record.settings if setting != AS_TRAINED]
        if others:
            best = [
                max((record.over_depths(n, s) for s in others), key=lambda cell: cell.correct) for n in record.lengths
            ]
            setting = others[0] if len(others) == 1 else "best RoPE factor"
            lines[f"{name}, {setting}"] = (letter.lower(), best)
    return lines


def text_chart(records: Sequence[Retrieval]) -> str:
    """A chart with a letter per point, capitals for models as trained. Coinciding points are drawn side by side."""
    lines = series(records)
    lengths = records[0].lengths
    grid = [[" "] * WIDE for _ in range(HIGH + 1)]
    for letter, cells in lines.values():
        for at, cell in enumerate(cells):
            level, column = grid[HIGH - round(cell.accuracy * HIGH)], _column(at, len(lengths))
            while column < WIDE - 1 and level[column] != " ":
                column += 1
            level[column] = letter
    rows = ["accuracy"]
    for number, characters in enumerate(grid):
        label = f"{100 * (HIGH - number) // HIGH}%" if number % 5 == 0 else ""
        rows.append(f"{label:>{LEFT - 2}} |{''.join(characters)}".rstrip())
    rows.append(" " * (LEFT - 1) + "+" + "-" * WIDE)
    trained = records[0].subject.trained_length or lengths[0]
    axis = ""
    for at, length in enumerate(lengths):
        axis = axis.ljust(_column(at, len(lengths))) + f"{length // trained}x"
    rows.append(" " * LEFT + axis)
    return "\n".join(rows)


def accuracy_table(records: Sequence[Retrieval]) -> str:
    """The numbers of the chart."""
    rows = []
    for name, (letter, cells) in series(records).items():
        percentages = "".join(f"{100 * cell.accuracy:4.0f}%" for cell in cells)
        rows.append(f"{letter} {name:<36}{percentages}")
    return "\n".join(rows)


def _column(index: int, count: int) -> int:
    return 2 + index * (WIDE - 8) // max(1, count - 1)
