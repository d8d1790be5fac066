"""Predicted times of the screening kernels, from the instructions of their binaries and the bytes they move.

Assumptions. Every instruction of a kernel's code is issued once per block of pairs, without stalls: this counts its
prologue too often and waiting not at all. No block is skipped because its keys fail. Every program reads its keys and
values from memory once, and nothing is shared through caches. The time is the larger of issue time and memory time.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from keysift.core import safe_json
from keysift.core.markdown import table_head, table_row


class Device(NamedTuple):
    """Data sheet: multiprocessors, instructions that each issues per cycle, clock in GHz, memory bandwidth in GB/s."""

    name: str
    processors: int
    issues: int
    ghz: float
    gb_per_s: float


DEVICES = {
    "sm_80": Device("A100", 108, 4, 1.41, 2039),
    "sm_90": Device("H100", 132, 4, 1.755, 3350),
    "gfx942": Device("MI300X", 304, 4, 2.1, 5300),
}


class Case(NamedTuple):
    """Batch, heads, widths, tokens and window of a call in bf16, and what a public port reported for its kernel."""

    what: str
    batch: int
    heads: int
    widths: tuple[int, int]
    tokens: int
    window: float
    reported: str = ""


# The port is ibusan100's screening kernel, forward, on an RTX 4060 Ti, as its author reports.
CASES = (
    Case("paper, window 256", 1, 16, (16, 64), 16_384, 256.0),
    Case("paper, infinite window", 1, 16, (16, 64), 16_384, math.inf),
    *(
        Case("shape of a port", 4, 8, (64, 64), tokens, math.inf, f"{ms} ms forward, RTX 4060 Ti")
        for tokens, ms in ((512, 0.68), (1024, 1.39), (2048, 2.83), (4096, 5.86))
    ),
)
KERNELS = {
    "forward": ("screening forward",),
    "backward": ("screening backward queries", "screening backward keys"),
}


def seconds(case: Case, row: dict[str, Any], device: Device) -> float:
    """Predicted time of one kernel, from its row in the record of binaries."""
    queries, keys = int(row["queries"]), int(row["keys"])
    instructions = int(row["instructions"]) * int(row["warps"])
    query_blocks = math.ceil(case.tokens / queries)
    span = min(case.window + queries, (case.tokens + queries) / 2)
    blocks = case.batch * case.heads * query_blocks * math.ceil(span / keys)
    issue = blocks * instructions / (device.processors * device.issues * device.ghz * 1e9)
    own = case.batch * case.heads * case.tokens * sum(case.widths) * 2
    moved = blocks * keys * sum(case.widths) * 2 + 2 * own
    return max(issue, moved / (device.gb_per_s * 1e9))


def show(record: Path) -> str:
    """A Markdown table of predicted milliseconds."""
    rows: list[dict[str, Any]] = safe_json.loads(record.read_text())["rows"]
    known = {(row["device"], row["kernel"], row["dtype"], row["widths"]): row for row in rows}
    lines = table_head("case", "tokens", "pass", *(device.name for device in DEVICES.values()), "reported by the port")
    for case in CASES:
        for step, kernels in KERNELS.items():
            cells = []
            for name, device in DEVICES.items():
                found = [known.get((name, kernel, "bfloat16", "{} {}".format(*case.widths))) for kernel in kernels]
                total = sum(seconds(case, row, device) for row in found if row is not None)
                cells.append("not compiled" if None in found else f"{1000 * total:.2f} ms")
            lines.append(
                table_row(case.what, f"{case.tokens:,}", step, *cells, case.reported if step == "forward" else "")
            )
    return "\n".join(lines)
