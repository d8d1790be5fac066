"""Findings about longer contexts: who loses focus, and who is distracted by unrelated tokens."""

from collections.abc import Iterator

from keysift.lens.findings.numbers import NAMED, count, names, places, rounded
from keysift.records.lens import Finding, Record

TOPIC = "Longer contexts"
SOON = 8  # a limit below this many times the text is worth a place in the story


def length_findings(record: Record) -> Iterator[Finding]:
    yield from _focus(record)
    yield from _dilution(record)


def _focus(record: Record) -> Iterator[Finding]:
    longest = max(text.tokens for text in record.texts)
    heads = [head for head in record.heads if head.values.get("reach") is not None]
    if not heads:
        return
    lost = [head for head in heads if (head.values["reach"] or 0) < longest]
    # A fitted end within the text says nothing new: the count before it is measured.
    ends = sorted(
        ((end, head) for head in heads if (end := head.values.get("focus_until")) is not None and end > longest),
        key=lambda pair: pair[0],
    )
    can = f"All {len(heads)} heads" if not lost else f"{len(heads) - len(lost)} of {len(heads)} heads"
    first = f"{can} can still give one key half of their attention at {longest} tokens."
    if not ends:
        weakest = min(heads, key=lambda head: head.values["reach"] or 0)
        where = f"{names(lost)} cannot at this length" if lost else f"the closest is {weakest.label}"
        yield Finding(
            topic=TOPIC,
            sentence=f"{first} None is about to lose this ability; {where}.",
            meaning="The range of scores grows as fast as the logarithm of the context.",
            action="Nothing to do at these lengths; inspect a longer text to be sure.",
            heads=places(lost[:NAMED] or [weakest]),
            weight=0.7 if lost else 0.2,
        )
        return
    losing = [head for _, head in ends]
    where = f"beyond about {rounded(ends[0][0])} tokens"
    if len(ends) > 1:
        where = f"the first {where}, half of them beyond {rounded(ends[(len(ends) - 1) // 2][0])}"
    yield Finding(
        topic=TOPIC,
        sentence=f"{first} {count(len(ends), 'lose')} it as the context grows ({names(losing)}): {where} "
        f"(extrapolated).",
        meaning="Their scores cannot be far enough apart to beat that many competing keys.",
        action="Measure the loss at that length with keysift eval, and try --swap ssmax, which rescales scores "
        "with the context.",
        heads=places([*lost[:NAMED], *losing[:NAMED]]),
        weight=0.9 if ends[0][0] < SOON * longest else 0.3,
    )


def _dilution(record: Record) -> Iterator[Finding]:
    test = record.tests.get("dilution")
    rows = [row for row in test["heads"] if row["exponent"] is not None] if test else []
    if not rows:
        return
    rows.sort(key=lambda row: -row["exponent"])
    heads = [record.head(row["layer"], row["head"]) for row in rows[:3]]
    average = sum(row["exponent"] for row in rows) / len(rows)
    yield Finding(
        topic=TOPIC,
        sentence=f"Unrelated tokens in front of a passage distract {heads[0].label} most: its focus falls like "
        f"n^{-rows[0]['exponent']:.2f} with n visible keys (average over heads: n^{-average:.2f}; 1: an average).",
        meaning="The focus on the passage falls although nothing in it changed.",
        action="Put what matters late in a prompt, or shorten what comes before it.",
        heads=places(heads),
        weight=0.5 if rows[0]["exponent"] > 0.5 else 0.15,
    )
