"""Excerpt of lens records, with the numbers that claims and comparisons need.

    python -m evidence.claims.lens_excerpt RECORD.json ... > SMALLER.json

A whole record of 270 heads has several megabytes. One input record gives one record; several, or the list that
`keysift compare --json` prints, give a list. No torch.
"""

import json
import sys
from dataclasses import replace

from keysift.records.lens import Record, load_all
from keysift.records.lens_terms import TERMS, in_excerpt, listed_name


def excerpt(record: Record) -> Record:
    """The same record with fewer diagnostics, without maps, calibration tables and the heads of swaps."""
    heads = tuple(
        replace(
            head,
            values={name: value for name, value in head.values.items() if in_excerpt(name)},
            by_length={name: row for name, row in head.by_length.items() if TERMS[listed_name(name)].excerpt_by_length},
        )
        for head in record.heads
    )
    tests = {name: result for name, result in record.tests.items() if name != "absolute_percentile"}
    swaps = tuple({"mechanism": swap["mechanism"], "losses": swap["losses"], "heads": []} for swap in record.swaps)
    return replace(record, heads=heads, tests=tests, swaps=swaps, maps=())


if __name__ == "__main__":
    excerpts = [excerpt(record).to_json() for path in sys.argv[1:] for record in load_all(path)]
    plain = excerpts[0] if len(excerpts) == 1 else excerpts
    sys.stdout.write(json.dumps(plain, separators=(",", ":"), allow_nan=False) + "\n")
