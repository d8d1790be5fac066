"""Latency by context length: verdicts and page from the stored record of `keysift bench models`."""

from collections.abc import Sequence
from pathlib import Path

from evidence.claims.paired import Word
from evidence.claims.verdict import Verdict, missing
from evidence.study import Claim, Study
from keysift.core.config import load
from keysift.core.markdown import table_head, table_row
from keysift.records.bench import Result, Row

STEPS = ("forward", "decode")
CLEAR = 2.0  # a speedup measured once decides only beyond this factor
STATEMENT = (
    f"At the longest length timed, both quartiles of the speedup lie on the same side of 1. If it was timed only once, "
    f"the speedup must be above {CLEAR:g} or below 1/{CLEAR:g}. A benchmark with --quick decides nothing. "
    f"The models are untrained: windows and acceptances have their initial values."
)


def read_benchmark(path: Path) -> Result | None:
    """None if there is no record yet."""
    return load(Result, path) if path.is_file() else None


def faster_at_longest(claim: Claim, bench: Result | None) -> Verdict:
    timed = _timed(bench, claim)
    if bench is None or not timed:
        return missing(claim, "keysift bench models")
    longest = max(timed, key=lambda timing: timing.tokens)
    assert longest.speedup is not None
    ratio, quick = longest.speedup, "--quick" in bench.command.split()
    once = ratio.low == ratio.high
    low, high = (ratio.low / CLEAR, ratio.high * CLEAR) if once else (ratio.low, ratio.high)
    word: Word = "underpowered" if quick or low <= 1 <= high else "supported" if low > 1 else "contradicted"
    why = f"at {longest.tokens:,} tokens, {_speedup(longest)}"
    spread = "" if once else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    effect = f"{ratio.median:.2f} times as fast{spread} at {longest.tokens:,} tokens"
    return Verdict(claim, word, why, effect, "one round" if once else "several rounds")


def _timed(bench: Result | None, claim: Claim) -> Sequence[Row]:
    rows = bench.rows if bench else ()
    return [timing for timing in rows if timing.step == claim.step and timing.speedup and timing.what == claim.ours]


def _speedup(timing: Row) -> str:
    assert timing.speedup is not None
    ratio = timing.speedup
    spread = "one round" if ratio.low == ratio.high else f"quartiles {ratio.low:.2f} to {ratio.high:.2f}"
    return f"{ratio.median:.2f} times as fast, {spread}"


def _format_ms(milliseconds: float) -> str:
    return f"{milliseconds:.4g}" if milliseconds < 1000 else f"{milliseconds:,.0f}"


def latency_tables(study: Study, bench: Result) -> list[str]:
    """Figure, table of times and provenance."""
    up = "../.."
    lines = [f"![Seconds of a forward pass by length]({up}/{study.page.benchmark.replace('.json', '.svg')})", ""]
    lines += table_head("step", "tokens", "model", "ms", "relative to the Transformer", "cache, MB")
    for timing in (timing for timing in bench.rows if timing.step in STEPS):
        cache = "" if timing.cache_bytes is None else f"{timing.cache_bytes / 1e6:.1f}"
        ratio = "" if timing.speedup is None else _speedup(timing)
        milliseconds = _format_ms(1000 * timing.seconds.median)
        lines.append(table_row(timing.step, f"{timing.tokens:,}", timing.what, milliseconds, ratio, cache))
    machine = bench.machine
    return [
        *lines,
        "",
        f"Measured on {bench.date}: {machine.cpu}, {machine.threads} thread{'s' * (machine.threads > 1)}, load "
        f"average {machine.load:g} at the start, commit {machine.commit}. The other results of this benchmark are in "
        f"[Performance of models]({up}/docs/performance-models.md).",
        "",
    ]
