"""Findings: each names a head, a token or an action, and follows the numbers of the record."""

from dataclasses import replace
from math import nan

import pytest

from keysift.lens.findings.all_findings import findings
from keysift.lens.inspection import inspect
from keysift.records.lens import Finding, Record, from_json
from keysift.records.lens_comparison import comparison
from tests.lens import hand_made
from tests.lens.hand_made import HandMade
from tests.lens.models import LINE, multiscreen, planted, transformer


@pytest.fixture(scope="module")
def mixed() -> Record:
    model = transformer(("softmax", "relu_exp"))
    with planted(model):
        return inspect(model, [LINE], swap=["sparsemax"], each_head=True)


def sentences(record: Record) -> str:
    return "\n".join(finding.sentence for finding in record.findings)


def test_every_finding_has_a_next_step_and_the_story_is_short(mixed: Record) -> None:
    for record in (mixed, inspect(multiscreen(), [LINE]), inspect(transformer(), [LINE])):
        assert 3 <= len(record.story) <= 5
        assert list(record.story) == list(record.findings[: len(record.story)]), "the most important first"
        for finding in record.findings:
            assert finding.action
            assert finding.meaning
            assert finding.sentence.endswith(".")
            assert all(record.head(*place) for place in finding.heads)
        assert sum(bool(finding.heads) for finding in record.story) >= 3


def test_findings_follow_the_record(mixed: Record) -> None:
    text = sentences(mixed)
    assert "L0H0" in next(f for f in mixed.findings if f.topic == "Sinks").sentence
    assert "keys on average" in text
    assert f"the loss goes from {mixed.texts[0].loss:.2f} to {mixed.tests['leave_out']['brightest']:.2f}" in text
    assert "With sparsemax on the same scores, without retraining, the loss is" in text
    assert set(mixed.tests) == {"absolute_percentile", "leave_out", "dilution", "nothing_relevant", "functional"}
    example = mixed.tests["absolute_percentile"]["only_relatively_bright"][0]
    pair = next(finding for finding in mixed.findings if finding.pairs).pairs[0]
    assert (pair.query, pair.key, pair.query_token) == (example["query"], example["key"], example["query_token"])


def test_absolute_models_are_asked_no_softmax_question() -> None:
    record = inspect(multiscreen(), [LINE])
    topics = {finding.topic for finding in record.findings}
    assert "Accepting and refusing" in topics
    assert not topics & {"Sinks", "Relevant or only relatively bright", "Spread"}
    curves = record.tests["acceptance"]
    for row in curves["heads"]:
        assert row["passing"] == sorted(row["passing"]), "a wider acceptance passes more"
        assert row["empty"] == sorted(row["empty"], reverse=True)
    assert not inspect(multiscreen(), [LINE], tests=False).tests


def test_copying_heads_are_named() -> None:
    record = inspect(HandMade([hand_made.induction, hand_made.own]), ["abcdefgh" * 4], tests=False)
    copying = next(finding for finding in record.findings if "Copying" in finding.sentence)
    assert copying.heads == ((0, 0),)
    best = ("L0H0 finds what came next the last time (9", "(100%)", "(over 99.9%)")
    assert any(words in copying.sentence for words in best)
    assert "No head copies" in sentences(inspect(HandMade([hand_made.own]), ["abcdefgh" * 4], tests=False))


def test_focus_that_ends_within_the_text_is_not_extrapolated() -> None:
    record = inspect(transformer(), [LINE], tests=False)
    length = record.texts[0].tokens

    def focus(*ends: float | None) -> Finding:
        heads = tuple(
            replace(head, values={**head.values, "reach": length, "focus_until": end})
            for head, end in zip(record.heads, (*ends, *[None] * len(record.heads)), strict=False)
        )
        listed = findings(replace(record, heads=heads))
        return next(finding for finding in listed if finding.topic == "Longer contexts")

    assert focus(1.0, 1e5).sentence.endswith("beyond about 100,000 tokens (extrapolated).")
    assert "1 head loses it as the context grows (L0H1)" in focus(1.0, 1e5).sentence
    assert focus(1.0, 1e5).heads == ((0, 1),)
    assert "the first beyond about 4,000 tokens, half of them beyond 4,000" in focus(4e3, 1e5).sentence
    assert "None is about to lose this ability" in focus(1.0).sentence
    assert focus(1.5 * length).weight > focus(1e5).weight, "a limit just beyond the text matters more"


def test_a_text_without_scored_tokens(mixed: Record) -> None:
    """No sentence contains a loss that does not exist, in a new record and in one that was read."""
    unknown = {"loss": nan, "brightest": nan, "first": nan}
    texts = tuple(replace(text, loss=nan, bits_per_byte=None) for text in mixed.texts)
    tests = {**mixed.tests, "leave_out": {**mixed.tests["leave_out"], **unknown}}
    tests["functional"] = {**mixed.tests["functional"], "loss": nan}
    swaps = tuple({**swap, "losses": dict.fromkeys(swap["losses"], nan)} for swap in mixed.swaps)
    record = replace(mixed, texts=texts, tests=tests, swaps=swaps)
    for each in (record, from_json(record.to_json())):
        found = list(findings(each))
        assert not [f.sentence for f in found if "nan" in f.sentence.split() or "the loss" in f.sentence]
        changed = next(finding for finding in found if finding.topic == "What the model depends on")
        assert changed.sentence.startswith("Without the brightest key of every query the output of layer ")
        assert all(finding.topic != "Other mechanisms" for finding in found)
        titles = [title for title, _ in comparison([each, each])]
        assert not any("loss" in title for title in titles)
