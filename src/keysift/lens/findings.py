"""What a record says, in plain sentences with their numbers. No torch: made from plain data."""

from collections import Counter
from collections.abc import Iterable

from keysift.lens import critical
from keysift.lens.kinds import MEANING
from keysift.lens.record import Head, Record

_PLACES = ("first", "own", "near", "span", "elsewhere", "largest")


def findings(record: Record) -> tuple[str, ...]:
    found = [_kinds(record), _dispersion(record), _focus(record), _critical(record), _refusal(record)]
    found += [*_tests(record), *_swaps(record)]
    return tuple(sentence for sentence in found if sentence)


def mean(heads: Iterable[Head], name: str) -> float | None:
    """Over the heads for which the diagnostic has a meaning."""
    values = [value for head in heads if (value := head.values.get(name)) is not None]
    return sum(values) / len(values) if values else None


def _kinds(record: Record) -> str:
    counted = Counter(kind for head in record.heads for kind in head.kinds)
    if not counted:
        return f"None of the {len(record.heads)} heads has a simple kind."
    parts = (f"{count} {kind} ({MEANING[kind]})" for kind, count in counted.most_common())
    return f"Of {len(record.heads)} heads: {'; '.join(parts)}."


def _dispersion(record: Record) -> str:
    keys, exponent = mean(record.heads, "effective_keys"), mean(record.heads, "fading_exponent")
    if keys is None or exponent is None:
        return ""
    fading = sum((head.values.get("fading_exponent") or 0) > 0.5 for head in record.heads)
    fade = f"{fading} head{' fades' if fading == 1 else 's fade'}"
    return (
        f"A row spreads over {keys:.1f} keys on average. The largest weight falls with the number n of visible keys "
        f"like n^-{exponent:.2f} on average; {fade} faster than n^-0.5 (1 would be a plain average)."
    )


def _focus(record: Record) -> str:
    longest = max(text.tokens for text in record.texts)
    heads = [head for head in record.heads if head.values.get("reach") is not None]
    if not heads:
        return ""
    short = sum((head.values["reach"] or 0) < longest for head in heads)
    ends = sorted(end for head in heads if (end := head.values.get("focus_until")) is not None)
    said = (
        f"{short} of {len(heads)} heads that share out their mass have too little spread of scores to give one key "
        f"half of it at {longest} visible keys."
    )
    if not ends:
        return f"{said} Their spreads keep up with log n as far as was seen."
    return (
        f"{said} In {len(ends)} the spread grows more slowly than log n: as fitted, the first of them can no longer do "
        f"it from {_rounded(ends[0])} keys on, half of them from {_rounded(ends[(len(ends) - 1) // 2])}."
    )


def _rounded(keys: float) -> str:
    """Two digits: a fit extended far beyond what was seen has no more."""
    return f"{float(f'{keys:.2g}'):,.0f}" if keys < 1e6 else f"{keys:.0e}".replace("e+0", "e").replace("e+", "e")


def _critical(record: Record) -> str:
    """At the longest contexts seen."""
    bucket = critical.longest_measured(record)
    if bucket is None:
        return ""
    low, high = record.lengths[bucket]
    found = [critical.critical(record, bucket, name) for name in (critical.OUTPUT, critical.SUBSET)]
    counts = ["no N that was tried" if n is None else f"N = {n}" for n in found]
    return (
        f"At {low} to {high} visible keys the distance of the N heaviest keys is like its expectation from the full "
        f"output from {counts[0]} on, and from that of a random set from {counts[1]} on (over heads, at the 1% level)."
    )


def _refusal(record: Record) -> str:
    heads = [head for head in record.heads if head.values.get("refuses_all") is not None]
    if not heads:
        return "No head can refuse: the weights of every row sum to one, whatever the keys are."
    share, nothing = mean(heads, "accepted_share"), mean(heads, "refuses_all")
    return (
        f"{len(heads)} heads can refuse keys exactly: on average they accept {100 * (share or 0):.1f}% of visible "
        f"keys, and {100 * (nothing or 0):.1f}% of their rows accept nothing."
    )


def _tests(record: Record) -> Iterable[str]:
    if not record.tests:
        return
    bright, ordinary = mean(record.heads, "bright"), mean(record.heads, "only_relatively_bright")
    if bright is not None:
        yield (
            f"{100 * bright:.1f}% of rows have a bright key (30% of the mass or more, the first key aside). "
            f"{100 * (ordinary or 0):.1f}% of these are only relatively bright: in most rows of unrelated text the "
            f"best key scores higher."
        )
    moved = mean(record.heads, "left_out_moved")
    if moved is not None:
        yield f"When a row's brightest key leaves, the weights of the others change by {moved:.3f} in sum."
    out = record.tests["leave_out"]
    outputs = [row["brightest_output"] for row in out["layers"]]
    yield (
        f"When every row loses its brightest key, the output of a layer moves by "
        f"{100 * sum(outputs) / len(outputs):.0f}% of its size on average and by {100 * max(outputs):.0f}% at most."
    )
    yield (
        f"Without the brightest key of each row the loss goes from {out['loss']:.3f} to {out['brightest']:.3f}; "
        f"without the first key, to {out['first']:.3f}."
    )
    faded = [row["exponent"] for row in record.tests["dilution"]["heads"] if row["exponent"] is not None]
    if faded:
        yield (
            f"Unrelated tokens before a span make heads lose focus on it like n^-b, b = {sum(faded) / len(faded):.2f} "
            f"on average and {max(faded):.2f} at most."
        )
    yield from _nothing(record)
    deletion = record.tests["functional"]["deletion"]["smallest"]
    again = record.tests["functional"]["renormalised"]["smallest"]
    yield (
        f"Keeping the heaviest {deletion['0.05']} of each row's keys suffices for a loss within 5% ({again['0.05']} "
        f"when they are renormalised), at {record.tests['functional']['tokens']} tokens."
    )


def _nothing(record: Record) -> Iterable[str]:
    rows = [row for row in record.tests["nothing_relevant"]["heads"] if row["with"]["span"] > 0.3]
    if not rows:
        yield "No head gave 30% of its mass to an earlier copy of the span, so there was nothing to take away."
        return
    before, after = (
        {key: sum(row[way][key] for row in rows) / len(rows) for key in _PLACES} for way in ("with", "without")
    )
    gained = max(("first", "own", "near", "elsewhere"), key=lambda place: after[place] - before[place])
    where = {"first": "the first key", "own": "the own token", "near": "the 8 tokens before", "elsewhere": "other keys"}
    yield (
        f"{len(rows)} head{'s' * (len(rows) > 1)} read an earlier copy of the span "
        f"({100 * before['span']:.0f}% of the mass). With the copy gone most of it goes to {where[gained]}, and the "
        f"largest weight is still {after['largest']:.2f} (it was {before['largest']:.2f})."
    )


def _swaps(record: Record) -> Iterable[str]:
    loss = sum(text.loss for text in record.texts) / len(record.texts)
    for swap in record.swaps:
        other = sum(swap["losses"].values()) / len(swap["losses"])
        yield (
            f"With {swap['mechanism']} on the same scores, without retraining, the loss is {other:.3f} instead of "
            f"{loss:.3f}."
        )
