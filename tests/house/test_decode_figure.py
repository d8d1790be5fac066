"""The decoding figure of docs/results/decode.json is what was promised; docs/models.md quotes it."""

import json
from pathlib import Path

RESULT = json.loads((Path(__file__).parents[2] / "docs" / "results" / "decode.json").read_text())


def test_memory_and_time_do_not_grow() -> None:
    """Time is held against the control, which cancels what else the machine was doing."""
    assert RESULT["tokens"] >= 100_000
    assert RESULT["cache_bytes_after_first_half"] == RESULT["cache_bytes_after_second_half"]
    assert RESULT["second_over_first_against_control"] <= 1.1
