"""A small result with known numbers, for whatever reads one."""

from keysift.evaluate.performance import Machine, Performance, Row, Spread, at_least, at_most

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
    def exactly(value: float) -> Spread:
        return Spread(median=value, low=value / 2, high=value * 2)

    return Row(
        tokens=tokens,
        tiles=8,
        window=window,
        acceptance=0.5,
        step="forward",
        seconds=exactly(seconds),
        against=against,
        their_seconds=None if their is None else exactly(their),
        speedup=None if their is None else exactly(their / seconds),
        sgemm_share=0.25,
        read_share=0.5,
    )


RESULT = Performance(
    command="keysift bench screening",
    date="2026-01-02",
    machine=MACHINE,
    rows=(
        row(1024, "infinite", 0.002, "SDPA", 0.01),
        row(4096, "infinite", 0.02, "SDPA", 0.1),
        row(4096, "2 .. 257", 0.004, "dense definition", 0.8),
        row(16384, "2 .. 257", 0.016),
    ),
    targets=(
        at_least("quick enough", 5.0, 3.0, full_size=True),
        at_least("not quick enough", 2.0, 3.0, full_size=True),
        at_most("small enough", 60.0, 64.0, full_size=True, unit="MB"),
        at_most("not at this size", 1.0, 1.05, full_size=False),
    ),
    notes=("something was not measured",),
)
