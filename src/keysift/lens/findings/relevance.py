"""Findings on the question of the lens: is a bright key relevant, or only less irrelevant than the others?"""

from collections.abc import Iterator

from keysift.lens.findings.numbers import count, largest, mean, percent, places, shares_mass, value
from keysift.records.lens import Finding, Head, Pair, Record

TOPIC = "Relevant or only relatively bright"
PLACES = {
    "first": "the first key",
    "own": "the query's own token",
    "near": "the 8 tokens before the query",
    "elsewhere": "other keys",
}


def relevance_findings(record: Record) -> Iterator[Finding]:
    heads = shares_mass(record)
    if heads and record.tests:
        yield from _bright(record, heads)
        yield from _nothing_relevant(record)
        yield from _removal(heads)


def _bright(record: Record, heads: list[Head]) -> Iterator[Finding]:
    bright, weak = mean(heads, "bright"), mean(heads, "only_relatively_bright")
    if bright is None or weak is None:
        return
    worst = largest(heads, "only_relatively_bright")
    shares = [f"{head.label} ({percent(value(head, 'only_relatively_bright'))})" for head in worst[:3]]
    pairs = _pairs(record)
    example = ""
    if pairs:
        pair = pairs[0]
        shown = record.tests["absolute_percentile"]["only_relatively_bright"][0]
        example = (
            f" Example: in L{pair.layer}H{pair.head}, {pair.query_token!r} gives {percent(shown['weight'])} to "
            f"{pair.key_token!r}; in {percent(1 - shown['among_best'])} of unrelated queries the best key scores "
            f"higher."
        )
    yield Finding(
        topic=TOPIC,
        sentence=f"{_one_in(weak)} bright keys would not stand out in unrelated text.{example}",
        meaning="A key is bright if it gets at least 30% of the attention. These win only because the competing keys "
        "are weaker: the weight is high, the score is ordinary.",
        action=f"Switch the map to Absolute. Heads with the largest share: {', '.join(shares)}.",
        heads=places(worst[:4]),
        pairs=pairs,
        weight=1.0 if weak >= 0.02 else 0.65,
    )


def _one_in(share: float) -> str:
    """1 in 8, for a share of 0.13."""
    if share <= 0:
        return "None of the"
    return f"1 in {round(1 / share)}" if share < 0.45 else f"{percent(share)} of the"


def _pairs(record: Record) -> tuple[Pair, ...]:
    examples = record.tests.get("absolute_percentile", {}).get("only_relatively_bright", [])
    fields = ("layer", "head", "text", "query", "key", "query_token", "key_token")
    return tuple(Pair(**{name: example[name] for name in fields}) for example in examples[:3])


def _nothing_relevant(record: Record) -> Iterator[Finding]:
    test = record.tests.get("nothing_relevant")
    if test is None:
        return
    rows = [row for row in test["heads"] if row["with"]["span"] > 0.3]
    if not rows:
        best = max(test["heads"], key=lambda row: row["with"]["span"])
        head = record.head(best["layer"], best["head"])
        yield Finding(
            topic=TOPIC,
            sentence=f"No head reads an earlier copy of a passage: the most is {percent(best['with']['span'])} of the "
            f"attention, in {head.label}.",
            meaning="So removing the copy shows nothing about refusing.",
            action="Test with a text in which a passage occurs twice.",
            heads=places([head]),
            weight=0.1,
        )
        return
    rows.sort(key=lambda row: -row["with"]["span"])
    heads = [record.head(row["layer"], row["head"]) for row in rows]
    before, after = (
        {key: sum(row[way][key] for row in rows) / len(rows) for key in (*PLACES, "span", "largest")}
        for way in ("with", "without")
    )
    gained = max(PLACES, key=lambda place: after[place] - before[place])
    yield Finding(
        topic=TOPIC,
        sentence=f"{count(len(rows), 'read')} an earlier copy of a passage ({percent(before['span'])} of the "
        f"attention; first {heads[0].label}). When the copy is replaced by unrelated text, their largest weight is "
        f"still {after['largest']:.2f} (before: {before['largest']:.2f}).",
        meaning=f"They cannot say that nothing matches: most of the attention moves to {PLACES[gained]}.",
        action="Read a bright key of these heads together with its percentile.",
        heads=places(heads[:4]),
        weight=0.75,
    )


def _removal(heads: list[Head]) -> Iterator[Finding]:
    ordered = largest(heads, "left_out_moved")
    change = mean(ordered, "left_out_moved")
    if change is None:
        return
    yield Finding(
        topic=TOPIC,
        sentence=f"Removing the brightest key of a query moves {percent(change)} of the attention to its other keys, "
        f"most in {ordered[0].label} ({percent(value(ordered[0], 'left_out_moved'))}).",
        meaning="The other scores did not change, only the competition.",
        action=f"Remove a key in the map of {ordered[0].label} and watch the others.",
        heads=places(ordered[:3]),
        weight=0.15,
    )
