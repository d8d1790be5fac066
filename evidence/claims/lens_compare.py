"""Table that compares models by their lens records: python -m evidence.claims.lens_compare RECORDS.json

RECORDS.json holds the list that `keysift compare --json` prints. No torch.
"""

import sys
from collections.abc import Sequence

from keysift.core.markdown import table_head, table_row
from keysift.core.terminal import escape_text
from keysift.records.lens import Record, load_all
from keysift.records.lens_comparison import comparison


def markdown(records: Sequence[Record]) -> str:
    names = [record.model.name for record in records]
    rows = (table_row(title, *map(_cell, values)) for title, values in comparison(records))
    return "\n".join([*table_head("mean over heads", *names), *rows])


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


if __name__ == "__main__":
    sys.stdout.write(escape_text(markdown(load_all(sys.argv[1])) + "\n"))
