"""E4, latency by context: the page of docs/results and its verdicts, from the record of `keysift bench models`."""

from pathlib import Path

from keysift.bench.record import Result, Row
from keysift.core.config import load
from keysift.sweep.claims import Verdict, missing
from keysift.sweep.groups import Word
from keysift.web.evidence_tables import head, row

KEY, TITLE = "e4-latency", "E4: latency by context"
STEPS = {"forward": "a forward pass over {:,} tokens takes", "decode": "a token decoded at a context of {:,} takes"}
CLEAR = 2.0
RULE = (
    f"at the longest length timed the quartiles of the ratio lie on one side of 1 or, where a pass takes minutes and "
    f"has one turn, the ratio is beyond {CLEAR:g}; a quick record decides nothing, and models are as initialised, so "
    f"windows and acceptances are not learned ones"
)
LARGER = "the same on a GPU and with trained models: the paper reports 2.3 times at 100,000 tokens"


def read_latency(path: Path) -> Result | None:
    """None if there is no record yet."""
    return load(Result, path) if path.is_file() else None


def latency_verdicts(bench: Result | None) -> list[Verdict]:
    if bench is None:
        return [missing("A Multiscreen is faster than a Transformer of its size", "keysift bench models")]
    found = []
    for step, words in STEPS.items():
        timed = [one for one in bench.rows if one.step == step and one.speedup and one.what.startswith("Multiscreen")]
        for what in dict.fromkeys(one.what for one in timed):
            one = max((one for one in timed if one.what == what), key=lambda one: one.tokens)
            claim = f"{words.format(one.tokens).capitalize()} less time in a {what} than in a {one.against} of its size"
            found.append(Verdict(claim, _word(one, quick="--quick" in bench.command.split()), _ratio(one)))
    return found


def _word(one: Row, *, quick: bool) -> Word:
    assert one.speedup is not None
    ratio = one.speedup
    low, high = (ratio.low / CLEAR, ratio.high * CLEAR) if ratio.low == ratio.high else (ratio.low, ratio.high)
    if quick or low <= 1 <= high:
        return "undecided"
    return "reproduced at this scale" if low > 1 else "not reproduced"


def _ratio(one: Row) -> str:
    assert one.speedup is not None
    spread = one.speedup
    turns = "one turn" if spread.low == spread.high else f"quartiles {spread.low:.2f} to {spread.high:.2f}"
    return f"{spread.median:.2f} times as fast, {turns}"


def latency_page(bench: Result | None) -> str:
    lines = [f"# {TITLE}", ""]
    lines += [f"- **{verdict.claim}: {verdict.word}** ({verdict.why})" for verdict in latency_verdicts(bench)]
    lines += ["", f"Rule: {RULE}. A larger run would have to show {LARGER}.", ""]
    if bench is not None:
        lines += ["![Seconds of a forward pass over tokens](models.svg)", ""]
        lines += head("step", "tokens", "model", "ms", "against the Transformer", "MB of cache")
        for one in (one for one in bench.rows if one.step in STEPS):
            cache = "" if one.cache_bytes is None else f"{one.cache_bytes / 1e6:.1f}"
            ratio = "" if one.speedup is None else _ratio(one)
            lines.append(row(one.step, f"{one.tokens:,}", one.what, f"{1000 * one.seconds.median:.4g}", ratio, cache))
        machine = bench.machine
        lines += [
            "",
            f"{bench.date} on {machine.cpu}, {machine.threads} thread{'s' * (machine.threads > 1)}, load "
            f"{machine.load:g} before, commit {machine.commit}; everything else of it is in "
            f"[performance of models](../performance-models.md).",
            "",
        ]
    lines += ["```sh", "keysift bench models" if bench is None else bench.command, "```"]
    return "\n".join(lines) + "\n"
