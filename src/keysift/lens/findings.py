"""Findings: plain sentences that state the main numbers of a record. No torch."""

from collections import Counter
from collections.abc import Iterable

from keysift.lens.diagnostics import critical_n
from keysift.records.head_kinds import MEANINGS
from keysift.records.lens import Head, Record

PLACES = {
    "first": "the first key",
    "own": "the query's own token",
    "near": "the 8 tokens before the query",
    "elsewhere": "other keys",
}


def findings(record: Record) -> tuple[str, ...]:
    """The sentences of a record, in the order of its parts."""
    sentences = [_kinds(record), _dispersion(record), _focus(record), _critical_n(record), _refusal(record)]
    sentences += [*_relative_relevance(record), *_experiments(record), *_swaps(record)]
    return tuple(sentence for sentence in sentences if sentence)


def mean(heads: Iterable[Head], name: str) -> float | None:
    """Mean of a diagnostic over the heads that have it."""
    values = [value for head in heads if (value := head.values.get(name)) is not None]
    return sum(values) / len(values) if values else None


def _kinds(record: Record) -> str:
    counts = Counter(kind for head in record.heads for kind in head.kinds)
    if not counts:
        return f"None of the {len(record.heads)} heads is of a simple kind."
    parts = (f"{count} {kind} ({MEANINGS[kind]})" for kind, count in counts.most_common())
    return f"{len(record.heads)} heads: {'; '.join(parts)}."


def _dispersion(record: Record) -> str:
    keys, exponent = mean(record.heads, "effective_keys"), mean(record.heads, "fading_exponent")
    if keys is None or exponent is None:
        return ""
    fast = [head for head in record.heads if (head.values.get("fading_exponent") or 0) > 0.5]
    return (
        f"A query spreads its attention over {keys:.1f} keys on average. With n visible keys the largest weight falls "
        f"like n^-{exponent:.2f} (1: like a plain average); in {len(fast)} of {len(record.heads)} heads "
        f"faster than n^-0.5."
    )


def _focus(record: Record) -> str:
    longest = max(text.tokens for text in record.texts)
    heads = [head for head in record.heads if head.values.get("reach") is not None]
    if not heads:
        return ""
    lost = sum((head.values["reach"] or 0) < longest for head in heads)
    # A fitted end within the text says nothing new: the count before it is measured.
    ends = sorted(
        (end, _label(head)) for head in heads if (end := head.values.get("focus_until")) is not None and end > longest
    )
    which = "heads" if len(heads) == len(record.heads) else "heads whose weights sum to one"
    can = f"All {len(heads)} {which} can" if lost == 0 else f"{len(heads) - lost} of {len(heads)} {which} can"
    first = f"{can} still focus at {longest} tokens (give one key half of their attention)."
    if not ends:
        who = "No head" if lost == 0 else "None of these"
        return f"{first} {who} is losing this ability: the range of scores grows as fast as log n."
    named = ", ".join(label for _, label in ends[:3])
    more = f" and {len(ends) - 3} more" if len(ends) > 3 else ""
    first_end, half = _rounded(ends[0][0]), _rounded(ends[(len(ends) - 1) // 2][0])
    where = f"beyond about {first_end} tokens"
    if len(ends) > 1:
        where = f"the first {where}, half of them beyond {half}"
    return f"{first} {_heads(len(ends), 'lose')} it as the context grows ({named}{more}): {where} (extrapolated)."


def _label(head: Head) -> str:
    return f"L{head.layer}H{head.head}"


def _heads(count: int, verb: str) -> str:
    """1 head falls, 3 heads fall."""
    return f"{count} head {verb}s" if count == 1 else f"{count} heads {verb}"


def _rounded(keys: float) -> str:
    """Two digits: an extrapolation has no more."""
    return f"{float(f'{keys:.2g}'):,.0f}" if keys < 1e6 else f"{keys:.0e}".replace("e+0", "e").replace("e+", "e")


def _critical_n(record: Record) -> str:
    """At the longest contexts of the record."""
    bucket = critical_n.longest_measured(record)
    if bucket is None:
        return ""
    low, high = record.lengths[bucket]
    output, subset = (critical_n.critical(record, bucket, name) for name in (critical_n.OUTPUT, critical_n.SUBSET))
    parts = (
        f"{'at no measured N' if n is None else f'from N = {n}'} with {reference}"
        for n, reference in ((output, "the full output"), (subset, "a random set of keys"))
    )
    return (
        f"With {low} to {high} visible keys, the distance of the top N keys is no larger than expected "
        f"{' and '.join(parts)} as the reference (Kolmogorov-Smirnov test over heads, 1% level)."
    )


def _refusal(record: Record) -> str:
    heads = [head for head in record.heads if head.values.get("refuses_all") is not None]
    if not heads:
        mechanisms = " or ".join(sorted(set(record.model.mechanisms)))
        return f"Every head uses {mechanisms}, so none can ignore all keys."
    share, empty = mean(heads, "accepted_share"), mean(heads, "refuses_all")
    return (
        f"{_heads(len(heads), 'give')} some keys exactly zero weight: on average they accept "
        f"{100 * (share or 0):.1f}% of the visible keys, and {100 * (empty or 0):.1f}% of their queries accept no key."
    )


def _relative_relevance(record: Record) -> Iterable[str]:
    if not record.tests:
        return
    bright, weak = mean(record.heads, "bright"), mean(record.heads, "only_relatively_bright")
    if bright is not None:
        empty = mean(record.heads, "refuses_all")
        queries = "the queries that accept a key" if empty else "queries"
        sentence = f"{100 * bright:.1f}% of {queries} have a bright key (at least 30% of the attention, the first key"
        if weak is not None:
            yield (
                f"{sentence} excluded). {100 * weak:.1f}% of the bright keys would not stand out in unrelated text: "
                f"they win only because the other keys are weaker.{_example(record)}"
            )
        else:
            yield f"{sentence} excluded).{_absolute(record)}"
    change = mean(record.heads, "left_out_moved")
    if change is not None:
        yield f"Removing the brightest key of a query changes the weights of its other keys by {change:.3f} in total."


def _absolute(record: Record) -> str:
    """A sentence for records without a value for keys that are only relatively bright."""
    exists = any(head.values.get("bright") for head in record.heads)
    return " Other keys cannot change these weights." if exists else ""


def _example(record: Record) -> str:
    examples = record.tests.get("absolute_percentile", {}).get("only_relatively_bright")
    if not examples:
        return ""
    example = examples[0]
    return (
        f" Example: L{example['layer']}H{example['head']}, query {example['query_token']!r}, "
        f"key {example['key_token']!r}."
    )


def _experiments(record: Record) -> Iterable[str]:
    if not record.tests:
        return
    left_out = record.tests["leave_out"]
    outputs = [row["brightest_output"] for row in left_out["layers"]]
    yield (
        f"Removing the brightest key of every query changes the output of a layer by "
        f"{100 * sum(outputs) / len(outputs):.0f}% on average and by {100 * max(outputs):.0f}% at most. In all layers "
        f"it changes the loss from {left_out['loss']:.3f} to {left_out['brightest']:.3f}; removing the first key, to "
        f"{left_out['first']:.3f}."
    )
    exponents = [row["exponent"] for row in record.tests["dilution"]["heads"] if row["exponent"] is not None]
    if exponents:
        yield (
            f"Unrelated tokens before a span weaken the focus of heads on it: like "
            f"n^-{sum(exponents) / len(exponents):.2f} on average and n^-{max(exponents):.2f} at most."
        )
    yield _nothing_relevant(record)
    top = record.tests["functional"]
    yield (
        f"Keeping only the top {top['deletion']['smallest']['0.05']} keys per query raises the loss by at most 5% "
        f"(top {top['renormalised']['smallest']['0.05']} if weights are renormalised). "
        f"Measured on {top['tokens']} tokens."
    )


def _nothing_relevant(record: Record) -> str:
    rows = [row for row in record.tests["nothing_relevant"]["heads"] if row["with"]["span"] > 0.3]
    if not rows:
        return "No head gives 30% of its attention to an earlier copy of a span, so removing the copy shows nothing."
    before, after = (
        {key: sum(row[way][key] for row in rows) / len(rows) for key in (*PLACES, "span", "largest")}
        for way in ("with", "without")
    )
    gained = max(PLACES, key=lambda place: after[place] - before[place])
    return (
        f"{_heads(len(rows), 'attend')} to an earlier copy of a span ({100 * before['span']:.0f}% of the attention). "
        f"Without the copy, most of that goes to {PLACES[gained]}; the largest weight is still {after['largest']:.2f} "
        f"(before: {before['largest']:.2f})."
    )


def _swaps(record: Record) -> Iterable[str]:
    loss = sum(text.loss for text in record.texts) / len(record.texts)
    for swap in record.swaps:
        swapped = sum(swap["losses"].values()) / len(swap["losses"])
        yield (
            f"With {swap['mechanism']} on the same scores, without retraining, the loss is {swapped:.3f} instead of "
            f"{loss:.3f}."
        )
