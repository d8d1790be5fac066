"""The figure in docs/models.md is the one in docs/results/decode.json, and it is what was promised."""

import json
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
RESULT = json.loads((DOCS / "results" / "decode.json").read_text())


def sentence() -> str:
    return (
        f"Measured (docs/results/decode.json): {RESULT['tokens']:,} tokens decoded one at a time by a "
        f"{RESULT['model']}, {RESULT['cpu_milliseconds_per_token']:.1f} ms of CPU time each. The second half took "
        f"{RESULT['second_over_first']:.2f} times as long as the first; a control that stayed on a short text, run "
        f"beside it on the same shared machine, {RESULT['control_second_over_first']:.2f} times. The cache held "
        f"{RESULT['cache_bytes_after_second_half']:,} bytes at the end and {RESULT['cache_bytes_after_first_half']:,} "
        f"halfway."
    )


def test_the_docs_quote_the_result() -> None:
    assert sentence() in " ".join((DOCS / "models.md").read_text().split())


def test_memory_and_time_do_not_grow() -> None:
    assert RESULT["tokens"] >= 100_000
    assert RESULT["cache_bytes_after_first_half"] == RESULT["cache_bytes_after_second_half"]
    assert RESULT["second_over_first_against_control"] <= 1.1
