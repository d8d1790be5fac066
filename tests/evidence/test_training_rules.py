"""Rules about training and about the gain from the context, on records made by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from evidence.claims.groups import RECALL_VALUES, accepted_share, chance, group_by_seed, label
from evidence.claims.length_rules import context_gain_higher
from evidence.claims.training_rules import MOST_EXCESS, fewer_tokens, order_predicted, sensitivity, sensitivity_lower
from evidence.pages.tables import measurement_tables
from evidence.records import RunRecord
from evidence.study import ROOT, Claim, RuleName, read_study
from keysift.data.tasks.recall import Recall
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.train.config import TrainConfig, flatten
from tests.evidence.test_rules import OURS, THEIRS, run_record

OPEN = replace(OURS, acceptance_start=(0.98,))


def claim(rule: RuleName, **fields: Any) -> Claim:
    return Claim(text="a claim", rule=rule, **fields)


def recall_run(model: MultiscreenArch, seed: int, recalled_at: int | None) -> RunRecord:
    """A run of nine steps of 1,024 tokens that recalls everything from a step on."""
    curve = [
        {"step": step, "tokens": 1024 * step, "accuracy": float(recalled_at is not None and step >= recalled_at)}
        for step in range(1, 10)
    ]
    return replace(run_record(model, seed=seed, batch_tokens=1024), measures={"accuracy_by_step": curve})


def test_fewer_tokens_compares_factors() -> None:
    early = [recall_run(OPEN, seed, 2) for seed in range(4)]
    late = [recall_run(OURS, seed, recalled_at) for seed, recalled_at in enumerate((4, 4, 4, None))]
    wanted = claim("fewer_tokens", ours="Multiscreen, open start", theirs="Multiscreen")
    verdict = fewer_tokens(wanted, group_by_seed([*early, *late]))
    assert verdict.comparison is not None
    assert verdict.comparison.differences == pytest.approx((math.log(2), math.log(2), math.log(2), math.log(4.5)))
    assert verdict.word == "supported"
    assert "0 of 4 and 1 of 4 runs end below 95%" in verdict.why
    assert verdict.effect.startswith("2.45 (")
    reverse = claim("fewer_tokens", ours="Multiscreen", theirs="Multiscreen, open start")
    assert fewer_tokens(reverse, group_by_seed([*early, *late])).word == "contradicted"
    assert fewer_tokens(wanted, group_by_seed(early)).word == "no records"
    without_pairs = [replace(record, settings={**record.settings, "seed": 7}) for record in late]
    assert fewer_tokens(wanted, group_by_seed([*early, *without_pairs])).word == "no records"


def test_the_order_of_acceptances() -> None:
    # Shares of the spec: r = .5 with 16, 32 and 64 channels.
    assert accepted_share(0.5, 16) == pytest.approx(2.0e-2, rel=0.03)
    assert accepted_share(0.5, 32) == pytest.approx(1.5e-3, rel=0.03)
    assert accepted_share(0.5, 64) == pytest.approx(1.1e-5, rel=0.05)
    assert accepted_share(0.9, 16) == pytest.approx(0.35, rel=0.03)
    widths = (16, 2), (32, 4), (64, 8)
    records = [recall_run(replace(OURS, key_width=width), n, at) for width, at in widths for n in range(3)]
    verdict = order_predicted(claim("order_predicted"), group_by_seed(records))
    assert verdict.word == "supported"
    assert "rank correlation -1.00 over 3 models" in verdict.why
    swapped = [recall_run(replace(OURS, key_width=width), n, 10 - at) for width, at in widths for n in range(3)]
    assert order_predicted(claim("order_predicted"), group_by_seed(swapped)).word == "contradicted"
    assert order_predicted(claim("order_predicted"), group_by_seed(records[:6])).word == "no records"


def test_sensitivity_counts_diverged_runs_with_the_cap() -> None:
    def at_rates(model: MultiscreenArch | TransformerArch, losses: tuple[float, ...]) -> list[RunRecord]:
        return [
            run_record(model, loss=loss + seed / 100, seed=seed, lr=2.0**-n)
            for n, loss in enumerate(losses)
            for seed in range(3)
        ]

    flat, steep = at_rates(OURS, (2.0, 2.1, 2.2)), at_rates(THEIRS, (2.0, 3.0, 9.0))
    steep = [replace(r, val_loss=None, state="diverged") if r.settings["lr"] == 0.25 else r for r in steep]
    values = sensitivity([group for group in group_by_seed(flat) if group.label == "Multiscreen"])
    assert values is not None
    assert values.values == pytest.approx((0.1, 0.1, 0.1))
    theirs = sensitivity(group_by_seed(steep))
    assert theirs is not None
    assert theirs.mean == pytest.approx((1.0 + MOST_EXCESS) / 3)
    assert sensitivity_lower(claim("sensitivity_lower"), group_by_seed([*flat, *steep])).word == "supported"
    assert sensitivity_lower(claim("sensitivity_lower"), group_by_seed(flat)).word == "no records"
    with_entropy = [replace(record, measures={"unigram": [{"nats": 2.9}]}) for record in (*flat, *steep)]
    tables = measurement_tables(read_study(ROOT / "learning-rates"), group_by_seed(with_entropy))
    assert "| Multiscreen | 0.100 ± 0.000 | 1 | none |" in tables
    lowest_rate_fails = measurement_tables(
        read_study(ROOT / "learning-rates"),
        group_by_seed([replace(r, measures=with_entropy[0].measures) for r in steep]),
    )
    assert any(line.startswith("| Transformer |") and "none" in line for line in lowest_rate_fails), (
        "only above the best"
    )


def test_gain_from_the_context() -> None:
    def record(model: MultiscreenArch | TransformerArch, seed: int, setting: str, gain: float) -> RunRecord:
        point = {"ratio": 16, "setting": setting, "nats": 2.0, "cut_nats": 2.0 + gain + seed / 1000, "context": 64}
        return replace(run_record(model, seed=seed), measures={"context_gain": [point]})

    records = [record(OURS, n, "as trained", 0.05) for n in range(3)]
    records += [record(THEIRS, n, "YaRN", -0.5 + n / 100) for n in range(3)]
    wanted = claim("context_gain_higher", length=16, their_setting="YaRN")
    verdict = context_gain_higher(wanted, group_by_seed(records))
    assert verdict.word == "supported"
    assert "changes the loss by -0.051 against +0.489 nats" in verdict.why
    assert context_gain_higher(replace(wanted, length=8), group_by_seed(records)).word == "no records"
    tables = measurement_tables(read_study(ROOT / "length-text"), group_by_seed(records))
    assert any(
        line.startswith("| Multiscreen | as trained |") and line.endswith("+0.051 ± +0.001 |") for line in tables
    )


def test_chance_and_labels() -> None:
    assert Recall().values == RECALL_VALUES
    assert chance({"data": "recall"}) == 1 / 16
    assert chance({"data": "recall:hops=2,values=8"}) == 1 / 8
    assert chance({"data": "abcdigits"}) == 0
    assert label(flatten(TrainConfig(model=replace(OURS, acceptance_start=(0.9,), key_width=8), clip=1.0))) == (
        "Multiscreen, start 0.9, key width 8, clipped"
    )
    assert label(flatten(TrainConfig(model=THEIRS, clip=0.0))) == "Transformer, not clipped"
    assert label(flatten(TrainConfig(model=THEIRS, clip=1.0))) == "Transformer"
