"""Numbers and names that findings share."""

import math
from collections.abc import Iterable, Sequence

from keysift.records.lens import Head, Record
from keysift.records.lens_comparison import mean as mean

NAMED = 4  # heads that a sentence names


def largest(heads: Iterable[Head], name: str) -> list[Head]:
    """The heads that have a diagnostic, the largest value first."""
    known = [head for head in heads if head.values.get(name) is not None]
    return sorted(known, key=lambda head: -(head.values[name] or 0.0))


def value(head: Head, name: str) -> float:
    """A diagnostic that the head has."""
    number = head.values[name]
    assert number is not None
    return number


def known(*losses: float | None) -> bool:
    """Whether the losses exist: a text of a generated task without a question has none."""
    return all(loss is not None and math.isfinite(loss) for loss in losses)


def places(heads: Iterable[Head]) -> tuple[tuple[int, int], ...]:
    return tuple((head.layer, head.head) for head in heads)


def names(heads: Sequence[Head]) -> str:
    """L0H1, L2H3 and 5 more."""
    labels = [head.label for head in heads]
    if len(labels) <= NAMED + 1:
        return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
    return f"{', '.join(labels[:NAMED])} and {len(labels) - NAMED} more"


def count(heads: int, verb: str) -> str:
    """1 head falls, 3 heads fall."""
    return f"{heads} head {verb}s" if heads == 1 else f"{heads} heads {verb}"


def percent(share: float) -> str:
    """Whole percents; one digit below 10%, and above 99%, where all is not nearly all."""
    if 0.995 < share < 1:
        return f"{100 * share:.1f}%" if share <= 0.9995 else "over 99.9%"
    return f"{100 * share:.0f}%" if share >= 0.1 or share == 0 else f"{100 * share:.1f}%"


def rounded(keys: float) -> str:
    """Two digits: an extrapolation has no more."""
    return f"{float(f'{keys:.2g}'):,.0f}" if keys < 1e6 else f"{keys:.0e}".replace("e+0", "e").replace("e+", "e")


def accepts(record: Record) -> list[Head]:
    """Heads that accept keys by a threshold: no question about shares of a fixed mass applies to them."""
    return [head for head in record.heads if head.values.get("threshold_margin") is not None]


def shares_mass(record: Record) -> list[Head]:
    """Heads without a threshold: a weight depends on the competing keys."""
    return [head for head in record.heads if head.values.get("threshold_margin") is None]
