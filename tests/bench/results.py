"""A small benchmark result with known numbers."""

from keysift.core.provenance import Machine
from keysift.records.bench import Quartiles, Result, Row, at_least, at_most

MACHINE = Machine(
    cpu="a <fast> processor",
    cores=2,
    threads=2,
    memory_gb=8.0,
    instruction_set="avx512",
    python="3.11",
    torch="2.13",
    keysift="0.1",
    commit="abc",
    load=0.1,
    sgemm_gflops=100.0,
    read_gb_per_s=10.0,
)


def row(tokens: int, window: str, seconds: float, against: str = "", their: float | None = None) -> Row:
    def exactly(value: float) -> Quartiles:
        return Quartiles(median=value, low=value / 2, high=value * 2)

    return Row(
        what=f"screening, {window}",
        setting="8 tiles",
        tokens=tokens,
        step="forward",
        seconds=exactly(seconds),
        against=against,
        their_seconds=None if their is None else exactly(their),
        speedup=None if their is None else exactly(their / seconds),
        sgemm_share=0.25,
        read_share=0.5,
    )


RESULT = Result(
    benchmark="screening",
    command="keysift bench screening",
    date="2026-01-02",
    machine=MACHINE,
    rows=(
        row(1024, "no window", 0.002, "SDPA", 0.01),
        row(4096, "no window", 0.02, "SDPA", 0.1),
        row(1024, "windows 2 .. 257", 0.001, "dense definition", 0.05),
        row(4096, "windows 2 .. 257", 0.004, "dense definition", 0.8),
        row(16384, "windows 2 .. 257", 0.016),
    ),
    targets=(
        at_least("quick enough", 5.0, 3.0, full_size=True),
        at_least("not quick enough", 2.0, 3.0, full_size=True),
        at_most("small enough", 60.0, 64.0, full_size=True, unit="MB"),
        at_most("not at this size", 1.0, 1.05, full_size=False),
    ),
    notes=("something was not measured",),
)
