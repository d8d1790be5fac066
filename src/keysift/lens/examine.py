"""`inspect`: every diagnostic of a model on some texts, as one record.

Reading order: the texts are checked, unrelated text calibrates each head, every text is read once for the row
diagnostics, and the tests of relative relevance run on the texts' ends and beginnings.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keysift.core import memory, provenance
from keysift.core.errors import RangeError
from keysift.lens.collect import Array, Collector, HeadSums
from keysift.lens.dilution import dilution
from keysift.lens.findings import findings
from keysift.lens.functional import functional
from keysift.lens.kinds import kinds
from keysift.lens.leave_out import leave_out
from keysift.lens.nothing import nothing_relevant
from keysift.lens.percentile import LEVELS, Calibration, calibrate
from keysift.lens.reading import CELLS, Reading
from keysift.lens.record import Head, Record, Text
from keysift.lens.subject import Progress, Sample, Subject, checked, losses, silent
from keysift.lens.swap import output, swapped

NO_LIMIT = 1e12  # a reach beyond is written as this
EXCERPT = 128  # tokens of each text in the tests that run the model for every layer, and for every count of keys
NAMED = 20  # keys that are only relatively bright, by name


def inspect(
    subject: Subject,
    texts: Mapping[str, str] | Sequence[str],
    *,
    tokens: int | None = None,
    batch: int = 1,
    sample: int = 16,
    seed: int = 0,
    tests: bool = True,
    each_head: bool = False,
    swap: Sequence[str] = (),
    progress: Progress = silent,
) -> Record:
    """The record of a model on texts, `batch` of them at a time.

    tokens     read only so many tokens of each text
    sample     rows of each context bucket that get the expensive diagnostics (collect.py)
    tests      also run the tests of relative relevance
    each_head  in them, also search the fewest keys each head needs: several runs of the model for each head
    swap       mechanisms that weigh the model's own scores instead, for comparison
    """
    began = time.monotonic()
    for name, value, least in (("batch", batch, 1), ("sample", sample, 0), ("tokens", tokens, 2)):
        if value is not None and value < least:
            raise RangeError(f"{name} must be at least {least}, got {value}")
    named = texts if isinstance(texts, Mapping) else {f"text {i + 1}": text for i, text in enumerate(texts)}
    ids = {name: checked(subject, name, text, tokens) for name, text in named.items()}
    _fits(subject, ids, batch)
    _can_swap(subject, next(iter(ids.values()))[:2], swap)
    longest = max(map(len, ids.values()))
    calibration = calibrate(subject, longest) if tests else None
    collector = Collector(longest, sample=sample, seed=seed, calibration=calibration)
    found = _collect(subject, ids, batch, collector, progress)
    record = Record(
        model=subject.about,
        texts=tuple(Text(name=name, tokens=len(ids[name]), loss=loss) for name, loss in found.items()),
        lengths=tuple((2**k, 2 ** (k + 1) - 1) for k in range(collector.buckets)),
        heads=heads_of(collector),
        tests=_tests(Sample(subject, list(ids.values()), batch), collector, each_head, progress) if calibration else {},
        swaps=tuple(_swap(subject, ids, batch, name, collector, progress) for name in swap),
        made={"cpu": provenance.cpu(), "commit": provenance.commit(), "sample": sample, "seed": seed},
    )
    return record.because(findings(record), seconds=time.monotonic() - began)


def _collect(
    subject: Subject,
    ids: Mapping[str, Sequence[int]],
    batch: int,
    collector: Collector,
    progress: Progress,
    swap: str | None = None,
) -> dict[str, float]:
    """Losses by text; the collector has seen every layer of every text."""
    names, done = list(ids), 0
    found: dict[str, float] = {}
    total = len(subject.about.heads) * -(-len(names) // batch)

    def visit(reading: Reading) -> Any:
        nonlocal done
        seen = reading if swap is None else swapped(reading, swap)
        collector.visit(seen)
        done += 1
        progress(swap or "layers", done, total)
        return None if swap is None else output(seen)

    for start in range(0, len(names), batch):
        collector.before = start
        some = names[start : start + batch]
        texts = [ids[name] for name in some]
        found |= dict(zip(some, losses(subject, subject.run(texts, visit), texts), strict=True))
    return found


def _tests(sample: Sample, collector: Collector, each_head: bool, progress: Progress) -> dict[str, Any]:
    assert collector.calibration is not None
    longest = max(map(len, sample.texts))
    progress("tests", 0, 4)
    found: dict[str, Any] = {
        "absolute_percentile": _percentiles(sample.subject, sample.texts, collector, collector.calibration),
        "leave_out": leave_out(sample.beginnings(EXCERPT), progress),
    }
    progress("tests", 1, 4)
    found["dilution"] = dilution(sample, longest)
    progress("tests", 2, 4)
    found["nothing_relevant"] = nothing_relevant(sample, longest)
    progress("tests", 3, 4)
    found["functional"] = functional(sample.beginnings(EXCERPT), heads=each_head, progress=progress)
    progress("tests", 4, 4)
    return found


def _percentiles(
    subject: Subject, texts: Sequence[Sequence[int]], collector: Collector, calibration: Calibration
) -> dict[str, Any]:
    named = collector.examples.lowest(NAMED)
    for facts in named:
        ids = texts[facts["text"]]
        facts["query_token"], facts["key_token"] = subject.pieces([ids[facts["query"]], ids[facts["key"]]])
    return {
        "tokens": calibration.tokens,
        "levels": LEVELS,
        "scores": {str(layer): table.tolist() for layer, table in sorted(calibration.scores.items())},
        "best": {str(layer): table.tolist() for layer, table in sorted(calibration.best.items())},
        "only_relatively_bright": named,
    }


def _swap(
    subject: Subject,
    ids: Mapping[str, Sequence[int]],
    batch: int,
    name: str,
    collector: Collector,
    progress: Progress,
) -> dict[str, Any]:
    other = Collector(max(map(len, ids.values())), sample=0, seed=collector.seed)  # the diagnostics of every row
    found = _collect(subject, ids, batch, other, progress, swap=name)
    heads = [{"layer": h.layer, "head": h.head, "kinds": h.kinds, "values": h.values} for h in heads_of(other)]
    return {"mechanism": name, "losses": found, "heads": heads}


def _can_swap(subject: Subject, ids: Sequence[int], swap: Sequence[str]) -> None:
    """Two tokens tell whether every layer's scores can be weighed so, before the work starts."""

    def visit(reading: Reading) -> None:
        for name in swap:
            swapped(reading, name)

    if swap:
        subject.run([ids], visit)


def _fits(subject: Subject, ids: Mapping[str, Sequence[int]], batch: int) -> None:
    """Logits and their softmax, and a block of scores with what is made of it."""
    longest = max(map(len, ids.values()))
    logits = 3 * batch * longest * subject.about.vocabulary
    size = 4 * (logits + 24 * CELLS)
    memory.need(size, f"{longest} tokens at a time", "read fewer with --tokens, or less at a time with --batch 1")


def heads_of(collector: Collector) -> tuple[Head, ...]:
    found = []
    for layer, sums in sorted(collector.layers.items()):
        values = {name: sums.mean(name) for name in sums.sums} | _derived(sums)
        by_length = {name: sums.by_length(name) for name in sums.sums}
        if "spread" in by_length:
            by_length["reach"] = _reach(by_length["spread"])
        for head in range(sums.heads):
            own = {name: _number(column[head]) for name, column in values.items()}
            found.append(
                Head(
                    layer=layer,
                    head=head,
                    kinds=kinds(own),
                    values=own,
                    by_length={name: tuple(map(_number, table[head])) for name, table in by_length.items()},
                )
            )
    return tuple(found)


def _derived(sums: HeadSums) -> dict[str, Array]:
    """What is fitted or computed from means rather than averaged over rows."""
    found = {
        "fading_exponent": -sums.slope("fading"),
        "fading_exponent_without_first": -sums.slope("fading_without_first"),
    }
    if "spread" in sums.sums:
        slope, level = sums.line("spread")
        found["spread_slope"] = slope
        found["reach"] = _reach(_last(sums.by_length("spread")))
        # Where the line meets log n, the spread that half of the mass takes; a line that rises as fast never does.
        with np.errstate(divide="ignore", invalid="ignore"):
            meets = level / (1 - slope)
            meets = np.where((slope < 1) & (meets < np.log(NO_LIMIT)), meets, np.nan)
        found["focus_until"] = np.exp(np.maximum(meets, 0))
    return found


def _reach(spread: Array) -> Array:
    """The longest context in which this spread of scores can still give one key half of the mass."""
    found: Array = np.minimum(1 + np.exp(np.minimum(spread, 50)), NO_LIMIT)
    return found


def _last(table: Array) -> Array:
    """The last defined column of each row."""
    found = np.full(len(table), np.nan)
    for column in table.T:
        found = np.where(np.isfinite(column), column, found)
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
