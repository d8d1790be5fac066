"""Findings about the jobs of heads: sinks, copying, previous token, averaging."""

from collections.abc import Iterator

from keysift.lens.findings.numbers import known, largest, mean, names, percent, places, shares_mass, value
from keysift.records.head_kinds import ALL_KINDS, SINK, SINKS, HeadKind, closest
from keysift.records.lens import Finding, Head, Record

TOPIC = "Jobs of heads"
BY_NAME = {kind.name: kind for kind in ALL_KINDS}


def head_findings(record: Record) -> Iterator[Finding]:
    if shares_mass(record):
        yield _sinks(record)
    yield from _copying(record)
    yield from _local(record)
    yield from _uniform(record)
    yield from _dispersion(record)


def _of_kind(record: Record, *kinds: str) -> list[Head]:
    """The heads of these kinds, the largest score first."""
    heads = [head for head in record.heads if set(kinds) & set(head.kinds)]
    return largest(heads, BY_NAME[kinds[0]].score)


def _nearest(record: Record, kind: HeadKind) -> tuple[Head, float] | None:
    return closest(record.heads, kind)


def _sinks(record: Record) -> Finding:
    heads = _of_kind(record, *(kind.name for kind in SINKS))
    if not heads:
        found = _nearest(record, SINK)
        assert found is not None
        head, score = found
        return Finding(
            topic="Sinks",
            sentence=f"No head uses the first token as a sink: the most is {percent(score)} of the attention, in "
            f"{head.label} (limit 50%).{_without_first(record)}",
            meaning="The attention that a query shows to its other keys is not what a sink left over.",
            action=f"Open {head.label} and look at the first column of its map.",
            heads=places([head]),
            weight=0.55,
        )
    kinds = {kind.name: [head for head in heads if kind.name in head.kinds] for kind in SINKS}
    parts = [f"{len(some)} {name}{'s' if len(some) > 1 else ''}" for name, some in kinds.items() if some]
    return Finding(
        topic="Sinks",
        sentence=f"{len(heads)} of {len(record.heads)} heads put more than half of their attention on the first token: "
        f"{names(heads)} ({', '.join(parts)}; {heads[0].label}: {percent(value(heads[0], 'first_mass'))})."
        f"{_without_first(record)}",
        meaning="These heads have nothing to say most of the time. A no-op sink writes little, because the value of "
        "the first token is small; a broadcast sink writes the same vector everywhere.",
        action="Judge their other keys by raw score or percentile, not by weight, and keep the first token if you trim "
        "the cache.",
        heads=places(heads),
        weight=1.0,
    )


def _verb(heads: list[Head], verb: str) -> str:
    return f"{verb}s" if len(heads) == 1 else verb


def _without_first(record: Record) -> str:
    test = record.tests.get("leave_out")
    if test is None or not known(test["loss"], test["first"]):
        return ""
    return f" Removing the first key everywhere changes the loss from {test['loss']:.2f} to {test['first']:.2f}."


def _copying(record: Record) -> Iterator[Finding]:
    induction, duplicate = _of_kind(record, "induction"), _of_kind(record, "duplicate token")
    if mean(record.heads, "induction_mass") is None:
        return
    if induction or duplicate:
        parts = []
        if induction:
            share = percent(value(induction[0], "induction_mass"))
            parts.append(f"{names(induction)} {_verb(induction, 'find')} what came next the last time ({share})")
        if duplicate:
            share = percent(value(duplicate[0], "duplicate_mass"))
            parts.append(f"{names(duplicate)} {_verb(duplicate, 'find')} the earlier copy of a token ({share})")
        yield Finding(
            topic=TOPIC,
            sentence=f"Copying: {'; '.join(parts)}. Measured on a random sequence that is read twice.",
            meaning="Induction heads let a model continue a pattern it saw once in the context; duplicate-token heads "
            "tell it that a token is repeated.",
            action="Hover over the second mention of a name in their maps, or switch one off with keysift.edit and "
            "measure the loss.",
            heads=places([*induction, *duplicate]),
            weight=0.95,
        )
        return
    found = _nearest(record, BY_NAME["induction"])
    assert found is not None
    head, score = found
    yield Finding(
        topic=TOPIC,
        sentence=f"No head copies: on a random sequence that is read twice, the most that a head gives to the token "
        f"after the earlier copy is {percent(score)} ({head.label}; limit 30%).",
        meaning="The model has not learned to continue an arbitrary pattern from its context.",
        action="Do not expect it to repeat names or codes that are new to it; longer training may help.",
        heads=places([head]),
        weight=0.6,
    )


def _local(record: Record) -> Iterator[Finding]:
    for kind in ("previous token", "own token"):
        heads = _of_kind(record, kind)
        if heads:
            score = BY_NAME[kind].score
            yield Finding(
                topic=TOPIC,
                sentence=f"{names(heads)} {_verb(heads, 'look')} at the "
                f"{'token before the query' if kind == 'previous token' else 'query itself'}: "
                f"{percent(value(heads[0], score))} of the attention in {heads[0].label}.",
                meaning="A head that reads the previous token joins pieces of words, and prepares induction in a later "
                "layer."
                if kind == "previous token"
                else "Such a head transforms a token without reading the context.",
                action="Compare it with a window of 2 tokens: a local head needs no long cache.",
                heads=places(heads),
                weight=0.5,
            )


def _uniform(record: Record) -> Iterator[Finding]:
    heads = _of_kind(record, "uniform")
    if heads:
        yield Finding(
            topic=TOPIC,
            sentence=f"{names(heads)} {_verb(heads, 'average')} over nearly all keys: the effective keys are "
            f"{percent(value(heads[0], 'effective_share'))} of the visible ones in {heads[0].label}.",
            meaning="Their weights say nothing about single keys.",
            action="Leave these heads out when you read attention as an explanation; they are candidates for pruning.",
            heads=places(heads),
            weight=0.7,
        )


def _dispersion(record: Record) -> Iterator[Finding]:
    heads = largest(shares_mass(record), "fading_exponent")
    keys = mean(heads, "effective_keys")
    if not heads or keys is None:
        return
    most = heads[0]
    yield Finding(
        topic="Spread",
        sentence=f"A query spreads its attention over {keys:.1f} keys on average. With n visible keys the largest "
        f"weight falls fastest in {most.label}, like n^-{value(most, 'fading_exponent'):.2f} (1: like an average).",
        meaning="The more keys share the attention, the less a single weight says.",
        action=f"Look at {most.label} with the map of percentiles.",
        heads=places(heads[:3]),
        weight=0.1,
    )
