"""Findings about heads that accept keys by a threshold (screening and its relatives)."""

from collections.abc import Iterator

from keysift.lens.findings.numbers import accepts, count, largest, mean, names, percent, places, shares_mass, value
from keysift.records.lens import Finding, Record

TOPIC = "Accepting and refusing"


def absolute_findings(record: Record) -> Iterator[Finding]:
    heads = accepts(record)
    if heads:
        yield from _acceptance(record)
        yield from _refusal(record)
        yield from _wider(record)
    zeros = [head for head in shares_mass(record) if head.values.get("refuses_all") is not None]
    if zeros:
        sparse = largest(zeros, "accepted_share")
        yield Finding(
            topic=TOPIC,
            sentence=f"{count(len(zeros), 'give')} some keys exactly zero weight: on average "
            f"{percent(mean(zeros, 'accepted_share') or 0)} of the visible keys get any, most in {sparse[0].label}.",
            meaning="Which keys get zero depends on the other keys of the row.",
            action="Remove a key in the map and see which keys enter.",
            heads=places(sparse[:3]),
            weight=0.5,
        )
    if not heads and not zeros:
        mechanisms = " or ".join(sorted(set(record.model.mechanisms)))
        yield Finding(
            topic=TOPIC,
            sentence=f"Every head uses {mechanisms}, so none can refuse all keys.",
            meaning="Some key is always bright, whether or not any is relevant.",
            action="Compare weights with percentiles against unrelated text, or try --swap relu_exp.",
            weight=0.05,
        )


def _acceptance(record: Record) -> Iterator[Finding]:
    heads = largest(accepts(record), "accepted")
    keys, share = mean(heads, "accepted"), mean(heads, "accepted_share")
    if keys is None or share is None:
        return
    most, least = heads[0], heads[-1]
    yield Finding(
        topic=TOPIC,
        sentence=f"A query accepts {keys:.1f} keys on average ({percent(share)} of the visible ones): most in "
        f"{most.label} ({value(most, 'accepted'):.1f}), fewest in {least.label} ({value(least, 'accepted'):.1f}).",
        meaning="Every accepted key passed a threshold of its own: its weight does not depend on the other keys.",
        action=f"Open {most.label} and check whether the accepted keys are the ones you expect.",
        heads=places([most, least]),
        weight=1.0,
    )


def _refusal(record: Record) -> Iterator[Finding]:
    heads = largest(accepts(record), "refuses_all")
    if not heads:
        return
    empty = [head for head in heads if value(head, "refuses_all") > 0.5]
    margin = mean(heads, "refused_margin")
    below = "" if margin is None else f" The best refused key is {margin:.2f} below the threshold on average."
    yield Finding(
        topic=TOPIC,
        sentence=f"{percent(mean(heads, 'refuses_all') or 0)} of the queries refuse every key, most in "
        f"{heads[0].label} ({percent(value(heads[0], 'refuses_all'))}).{below}",
        meaning="A row that refuses everything adds exactly nothing: the head has no opinion on this token."
        + (f" {names(empty)} refuse in most rows." if empty else ""),
        action="A head that always refuses is unused: raise its acceptance r with the slider and see what would pass.",
        heads=places(heads[:4]),
        weight=0.95,
    )


def _wider(record: Record) -> Iterator[Finding]:
    curves = record.tests.get("acceptance")
    if not curves:
        return
    gains = []
    for row in curves["heads"]:
        head = record.head(row["layer"], row["head"])
        wide = next((k for k, r in enumerate(curves["widths"]) if r >= min(1.0, 1.5 * row["acceptance"])), None)
        if wide is not None and head.values.get("accepted") is not None:
            gains.append((row["passing"][wide] - value(head, "accepted"), curves["widths"][wide], row, head))
    if not gains:
        return
    gain, width, row, head = max(gains, key=lambda entry: entry[0])
    yield Finding(
        topic=TOPIC,
        sentence=f"{head.label} is nearest to accepting more: with r = {width:.2f} instead of {row['acceptance']:.2f} "
        f"it would accept {gain:.1f} more keys per query.",
        meaning="Many keys are just below its threshold.",
        action="Move the slider for r on its map to see which ones.",
        heads=places([head]),
        weight=0.6,
    )
