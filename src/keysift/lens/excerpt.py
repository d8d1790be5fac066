"""What the pages of docs/results need of a record: python -m keysift.lens.excerpt RECORD.json ... > SMALLER.json

A whole record of 270 heads has several megabytes. One record gives one, several (or what `keysift compare --json`
printed) give a list. No torch: plain data in, plain data out.
"""

import json
import re
import sys
from dataclasses import replace

from keysift.lens.record import Record, load_all

NEEDED = re.compile(
    r"(recall(_of_shuffled_values|_lower|_upper)?|distance(_tightness|_expected_output|_expected_subset)?)_\d+"
    r"|gradient_[\d.]+_0\.001|gradient_(tightness|above_published)|(fading_exponent|largest_weight)(_without_first)?"
    r"|spread_slope|reach|focus_until|effective_keys|first_mass|row_mass|accepted_share|refuses_all|left_out_\w+|bright"
    r"|only_relatively_bright|entropy_floor_share|saturated"
)


def excerpt(record: Record) -> Record:
    """The same record with the numbers that claims and side-by-side tables are made of."""
    heads = tuple(
        replace(
            head,
            values={name: value for name, value in head.values.items() if NEEDED.fullmatch(name)},
            by_length={name: row for name, row in head.by_length.items() if re.match(r"distance_(\d|expected)", name)},
        )
        for head in record.heads
    )
    tests = {name: found for name, found in record.tests.items() if name != "absolute_percentile"}
    swaps = tuple({"mechanism": swap["mechanism"], "losses": swap["losses"], "heads": []} for swap in record.swaps)
    return replace(record, heads=heads, tests=tests, swaps=swaps)


if __name__ == "__main__":
    found = [excerpt(record).to_json() for path in sys.argv[1:] for record in load_all(path)]
    sys.stdout.write(json.dumps(found[0] if len(found) == 1 else found, separators=(",", ":"), allow_nan=False) + "\n")
