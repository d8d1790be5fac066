"""`inspect`: every diagnostic of a model on some texts, as one record."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from keysift.core import memory, provenance
from keysift.lens.collect import Array, Collector, HeadSums
from keysift.lens.kinds import kinds
from keysift.lens.reading import CELLS
from keysift.lens.record import Head, Record, Text
from keysift.lens.subject import Subject, checked, losses

NO_LIMIT = 1e12  # a reach beyond is written as this
Progress = Callable[[str, int, int], None]  # what, done, of


def inspect(
    subject: Subject,
    texts: Mapping[str, str] | Sequence[str],
    *,
    tokens: int | None = None,
    batch: int = 1,
    sample: int = 16,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Record:
    """The record of a model on texts, `batch` of them at a time.

    tokens   read only so many tokens of each text
    sample   rows of each context bucket that get the dear diagnostics (collect.py)
    """
    began = time.monotonic()
    named = texts if isinstance(texts, Mapping) else {f"text {i + 1}": text for i, text in enumerate(texts)}
    ids = {name: checked(subject, name, text, tokens) for name, text in named.items()}
    _fits(subject, ids, batch)
    collector = Collector(max(map(len, ids.values())), sample=sample, seed=seed)
    rows: list[Text] = []
    names = list(ids)
    layers, done = len(subject.about.heads), 0
    for start in range(0, len(names), batch):
        some = names[start : start + batch]

        def visit(reading: object) -> None:
            nonlocal done
            collector.visit(reading)  # type: ignore[arg-type]
            done += 1
            progress("layers", done, layers * -(-len(names) // batch))

        logits = subject.run([ids[name] for name in some], visit)
        found = losses(logits, [ids[name] for name in some])
        rows += [Text(name=name, tokens=len(ids[name]), loss=loss) for name, loss in zip(some, found, strict=True)]
    return Record(
        model=subject.about,
        texts=tuple(rows),
        lengths=tuple((2**k, 2 ** (k + 1) - 1) for k in range(collector.buckets)),
        heads=heads_of(collector),
        made={
            "seconds": time.monotonic() - began,
            "cpu": provenance.cpu(),
            "commit": provenance.commit(),
            "sample": sample,
            "seed": seed,
        },
    )


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
        found["spread_slope"] = sums.slope("spread_slope")
        # The longest context at which the mean spread of the longest rows could still give one key half of the mass.
        found["reach"] = np.minimum(1 + np.exp(np.minimum(_last(sums.by_length("spread")), 50)), NO_LIMIT)
    return found


def _last(table: Array) -> Array:
    """The last defined column of each row."""
    found = np.full(len(table), np.nan)
    for column in table.T:
        found = np.where(np.isfinite(column), column, found)
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
