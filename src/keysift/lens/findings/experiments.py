"""Findings from runs with changed attention: removed keys, few keys, swapped mechanisms."""

from collections.abc import Iterator

from keysift.lens.findings.numbers import known, percent, places
from keysift.records.lens import Finding, Record

TOPIC = "What the model depends on"


def experiment_findings(record: Record) -> Iterator[Finding]:
    if record.tests:
        yield _leave_out(record)
        if known(record.tests["functional"]["loss"]):
            yield _few_keys(record)
    yield from _swaps(record)


def _leave_out(record: Record) -> Finding:
    test = record.tests["leave_out"]
    measured = known(test["loss"], test["brightest"])
    by = "brightest" if measured else "brightest_output"
    layer = max(test["layers"], key=lambda row: row[by])
    heads = [head for head in record.heads if head.layer == layer["layer"]]
    heads.sort(key=lambda head: -(head.values.get("left_out_output") or 0.0))
    if measured:
        sentence = (
            f"Without the brightest key of every query the loss goes from {test['loss']:.2f} to "
            f"{test['brightest']:.2f} nats per token, on {test['tokens']} tokens. Layer {layer['layer']} alone: "
            f"{layer['brightest']:.2f}, the largest effect of one layer; its output changes by "
            f"{percent(layer['brightest_output'])}."
        )
        needed = test["brightest"] > 1.1 * test["loss"]
        meaning = (
            "The bright keys carry the prediction, whether or not they look meaningful."
            if needed
            else "The model hardly needs its bright keys."
        )
    else:
        sentence = (
            f"Without the brightest key of every query the output of layer {layer['layer']} changes by "
            f"{percent(layer['brightest_output'])}, the most of all layers."
        )
        meaning = "No token of this text is scored, so the effect on the loss is unknown."
    return Finding(
        topic=TOPIC,
        sentence=sentence,
        meaning=meaning,
        action=f"Select a query in {heads[0].label} and remove its brightest key: the page shows all new weights.",
        heads=places(heads[:3]),
        weight=0.8,
    )


def _few_keys(record: Record) -> Finding:
    test = record.tests["functional"]
    kept, renormalised = (test[way]["smallest"]["0.05"] for way in ("deletion", "renormalised"))
    return Finding(
        topic=TOPIC,
        sentence=f"Keeping only the top {kept} keys per query raises the loss by at most 5% (top {renormalised} if the "
        f"weights are renormalised). Measured on {test['tokens']} tokens.",
        meaning="All other keys together matter little for this text.",
        action=f"A sparse mechanism or a cache that keeps about {kept} keys per query is worth a test; --each-head "
        "finds the number for each head.",
        weight=0.4,
    )


def _swaps(record: Record) -> Iterator[Finding]:
    loss = sum(text.loss for text in record.texts) / len(record.texts)
    for swap in record.swaps:
        losses = swap["losses"].values()
        if not known(loss, *losses):
            continue
        swapped = sum(losses) / len(losses)
        yield Finding(
            topic="Other mechanisms",
            sentence=f"With {swap['mechanism']} on the same scores, without retraining, the loss is {swapped:.3f} "
            f"instead of {loss:.3f}.",
            meaning="The model works nearly as well, so these weights are not essential to it."
            if swapped < 1.05 * loss
            else "The model relies on the weights it was trained with.",
            action="Open the map of a head with both mechanisms side by side."
            if swapped > 1.05 * loss
            else f"Fine-tune with {swap['mechanism']} to see whether the difference disappears.",
            weight=0.85,
        )
