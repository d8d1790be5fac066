"""Verdicts follow from the numbers by the stated rule, in both directions, and need enough seeds."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scipy import stats

from evidence.claims.groups import SeedSample, best_groups, group_by_seed, label
from evidence.claims.length_rules import BEST_ROPE
from evidence.claims.paired import Comparison, holm
from evidence.claims.rules import RULES, corrected
from evidence.claims.verdict import Verdict
from evidence.records import RunRecord
from evidence.repeats import Repeat
from evidence.runs import required_runs
from evidence.study import ROOT, Claim, find_studies, read_study
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.train.config import TrainConfig, flatten

OURS, THEIRS = MultiscreenArch.psi(2), TransformerArch(depth=1, heads=2, width=8)


def run_record(
    model: MultiscreenArch | TransformerArch = OURS,
    loss: float = 2.0,
    seed: int = 0,
    lr: float = 0.01,
    parameters: int = 1000,
    state: str = "finished",
    lengths: dict[tuple[int, str], int] | None = None,
    **fields: Any,
) -> RunRecord:
    config = TrainConfig(model=model, steps=9, lr=lr, seed=seed, weight_decay=0.0, **fields)
    cells = [
        {"ratio": ratio, "setting": setting, "correct": correct, "total": 100, "length": 64 * ratio, "depth": 0.5}
        for (ratio, setting), correct in (lengths or {}).items()
    ]
    return RunRecord(
        name=f"{label(flatten(config))}_{parameters}_lr={lr:g}_seed={seed}",
        overrides={},
        settings=flatten(config),
        parameters=parameters,
        stream="",
        state=state,
        step=9,
        seconds=60.0,
        warmup_loss=3.0,
        final_loss=loss,
        val_loss=loss,
        bits_per_byte=None,
        accuracy=None,
        validations=[[9, loss]],
        curves={},
        sessions=[{"began": "2026-01-01T00:00", "commit": "c", "cpu": "one", "threads": 1, "torch": "2", "load": 0.0}],
        measures={"lengths": cells} if cells else {},
    )


def seeds(losses: tuple[float, ...], **rest: Any) -> list[RunRecord]:
    return [run_record(loss=loss, seed=seed, **rest) for seed, loss in enumerate(losses)]


def decide(study: str, records: Sequence[RunRecord]) -> list[Verdict]:
    """Verdicts of the claims of a study on these records."""
    groups = group_by_seed(records)
    return [RULES[claim.rule].decide(claim, groups) for claim in read_study(ROOT / study).claims]


def words(study: str, records: Sequence[RunRecord]) -> list[str]:
    return [verdict.word for verdict in decide(study, records)]


def test_a_comparison_against_scipy() -> None:
    comparison = Comparison((0.5, 0.7, 0.2, 0.6))
    reference = stats.ttest_1samp(comparison.differences, 0)
    assert comparison.p == pytest.approx(reference.pvalue)
    assert comparison.bounds() == pytest.approx(tuple(reference.confidence_interval()))
    assert comparison.word(comparison.p) == "supported"
    assert Comparison((-0.5, -0.7, -0.2, -0.6)).word(comparison.p) == "contradicted"
    assert comparison.word(0.06) == "underpowered"
    assert comparison.interval == "+0.5 (+0.156 to +0.844)"
    assert Comparison((0.5, 0.7)).p == 1
    assert Comparison((0.5, 0.7)).interval == "+0.6 (no interval)"
    assert Comparison((0.5,) * 3).p == 0, "no spread"
    assert Comparison((0.0,) * 3).p == 1


def test_equivalence_needs_the_interval_within_the_margin() -> None:
    close = (0.01, -0.02, 0.015, 0.0, -0.01)
    assert Comparison(close, margin=0.05).word(0.9) == "equivalent within the margin"
    assert Comparison(close, margin=0.012).word(0.9) == "underpowered"
    assert Comparison(close).word(0.9) == "underpowered", "no margin, no statement"


def test_seeds_needed() -> None:
    # Effect of one standard deviation: the textbook n for 80% power of a paired t-test is 10.
    spread = (0.0, 2.0, 1 + math.sqrt(0.5), 1 - math.sqrt(0.5))
    comparison = Comparison(spread)
    assert statistics.stdev(spread) == pytest.approx(1)
    assert comparison.seeds_needed == 10
    assert Comparison(spread, margin=2.0).seeds_needed == 5
    assert Comparison(spread, margin=0.01).seeds_needed is None
    assert Comparison((1.0, 2.0)).seeds_needed is None
    assert Comparison((0.5,) * 3).seeds_needed == 3


def test_pairs_share_their_seed() -> None:
    ours = SeedSample(values=(1.0, 2.0, 3.0), seeds=(0, 1, 2))
    assert ours.minus(SeedSample(values=(0.5, 1.0), seeds=(2, 0))) == (0.0, 2.5)


def test_holm_corrects_primary_claims_only() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    weak = Comparison((0.1, 0.3, 0.2, 0.4, 0.0))
    assert 0.025 < weak.p < 0.05
    claims = [Claim(text=str(n), rule="loss_lower", primary=n < 2) for n in range(3)]
    before = [Verdict(claim, "supported", "", comparison=weak) for claim in claims]
    assert [verdict.word for verdict in corrected(before)] == ["underpowered", "underpowered", "supported"]
    assert [verdict.word for verdict in corrected(before[1:])] == ["supported", "supported"]
    assert corrected(before)[0].text == f"underpowered (n needed: {weak.seeds_needed})"
    missing = Verdict(claims[0], "no records", "")
    assert [verdict.word for verdict in corrected([missing, before[1]])] == ["no records", "underpowered"]


def test_at_most_eight_claims_are_primary() -> None:
    assert sum(claim.primary for study in find_studies() for claim in study.claims) <= 8


def test_the_best_rate_has_every_seed() -> None:
    groups = group_by_seed(
        [*seeds((2.0, 2.1, 2.2), lr=0.1), run_record(loss=1.0, lr=0.2), run_record(loss=0.5, lr=0.3, state="diverged")]
    )
    (best,) = best_groups(groups)
    assert best.rate == 0.1
    assert [group.diverged for group in groups] == [0, 0, 1]
    assert groups[2].losses is None


def test_no_divergence() -> None:
    finished, diverged = seeds((2.0,) * 6), seeds((9.0,) * 6, model=THEIRS)
    diverged = [replace(record, state="diverged") for record in diverged]
    assert words("stability", [*finished, *diverged])[0] == "supported"
    assert words("stability", [*finished, *seeds((2.0,) * 6, model=THEIRS)])[0] == "underpowered"
    assert words("stability", [*finished, *diverged[:2]])[0] == "underpowered", "two seeds"
    swapped = [replace(record, state="diverged") for record in finished]
    assert words("stability", [*swapped, *seeds((2.0,) * 6, model=THEIRS)])[0] == "contradicted"
    assert "no record" in decide("stability", finished)[0].why
    verdict = decide("stability", [*finished, *diverged])[0]
    assert (verdict.effect, verdict.n) == ("0 of 6 Multiscreen runs diverged, 6 of 6 Transformer runs", "6")
    assert "p = 0.0022 in Fisher's exact test" in verdict.why


def test_accuracy_higher() -> None:
    open_start = replace(OURS, acceptance_start=(0.98,))
    our_cells = {(16, "as trained"): 90, (16, "windows expanded"): 97, (4, "as trained"): 10}
    ours = [
        run_record(open_start, seed=n, lengths={key: correct + n for key, correct in our_cells.items()})
        for n in range(3)
    ]
    their_cells = {(16, "as trained"): 40, (16, "RoPE scaled"): 99, (4, "as trained"): 50}
    theirs = [
        run_record(THEIRS, seed=n, lengths={key: correct - n for key, correct in their_cells.items()}) for n in range(3)
    ]
    assert words("one-hop", [*ours, *theirs]) == ["supported", "contradicted", "underpowered"]
    assert words("two-hop", [*ours, *theirs])[0] == "contradicted", "at four times the training length"
    assert words("one-hop", ours) == ["no records"] * 3
    for share, word in ((60, "supported"), (20, "task not learned by either")):
        records = [
            run_record(model, seed=n, lengths={(1, "as trained"): share, (16, "as trained"): far + n})
            for model, far in ((open_start, 15), (THEIRS, 10))
            for n in range(3)
        ]
        verdict = decide("one-hop", records)[0]
        assert verdict.word == word
        assert ("20% and 20% at the training length" in verdict.why) == (share == 20)


def test_loss_rise_lower() -> None:
    def record(model: MultiscreenArch | TransformerArch, seed: int, far: float, scaled: float) -> RunRecord:
        losses = [(128, "as trained", 2.0), (2048, "as trained", far)]
        losses += [(2048, "RoPE x2", scaled), (2048, "RoPE x16", scaled + 1)]
        points = [{"context": at, "setting": setting, "nats": nats + seed / 100} for at, setting, nats in losses]
        return replace(run_record(model, seed=seed), measures={"positions": points})

    records = [record(OURS, n, 2.1 + n / 100, 0.0) for n in range(3)]
    records += [record(THEIRS, n, 3.0 + n / 100, 1.9 + n / 100) for n in range(3)]
    assert [claim.their_setting for claim in read_study(ROOT / "positions").claims] == ["as trained", BEST_ROPE]
    assert words("positions", records) == ["supported", "contradicted"]
    assert "+0.110 against +1.010" in decide("positions", records)[0].why
    assert words("positions", records[:3]) == ["no records"] * 2


def test_loss_lower() -> None:
    whole, gateless = seeds((2.0, 2.01, 1.99)), seeds((2.2, 2.21, 2.19), model=replace(OURS, gate=False))
    verdicts = {verdict.claim.text: verdict.word for verdict in decide("ablation-text", [*whole, *gateless])}
    assert verdicts["Screening is worse without the gate"] == "supported"
    assert verdicts["Screening is worse with RoPE in place of MiPE"] == "no records"
    start = replace(OURS, acceptance_start=(0.98,))
    models = (start, 2.0), (replace(start, gate=False), 2.2), (replace(OURS, acceptance=1.0), 1.8)
    records = [r for model, loss in models for r in seeds((loss, loss + 0.01, loss - 0.01), model=model)]
    verdicts = {verdict.claim.text: verdict.word for verdict in decide("ablation-recall", records)}
    assert verdicts["Screening is worse without the gate"] == "supported"
    fixed = "Screening is worse with the acceptance fixed at r = 1"
    assert verdicts[fixed] == "contradicted", "a fixed acceptance has no start"
    spread = seeds((2.2, 2.21, 2.19), model=replace(OURS, acceptance_start=(0.5, 0.98)))
    assert words("start-text", [*whole, *spread]) == ["no records", "contradicted"]


def test_parameters_at_equal_loss() -> None:
    """The Transformer needs 2,000 parameters for what 1,000 do: halfway between 1,000 and 4,000 on a log scale."""
    theirs = [r for size, loss in ((1000, 3.0), (4000, 2.0)) for r in seeds((loss,) * 3, model=THEIRS, parameters=size)]
    ours = [r for size, loss in ((1000, 2.5), (1500, 2.25)) for r in seeds((loss,) * 3, parameters=size)]
    (verdict,) = decide("scaling", [*ours, *theirs])
    assert verdict.word == "supported"
    assert "0.51 (0.51 to 0.51) times" in verdict.why, "0.50 and 0.53, in the geometric mean"
    more = [r for size, loss in ((3000, 2.5), (9000, 2.25)) for r in seeds((loss,) * 3, parameters=size)]
    assert words("scaling", [*more, *theirs]) == ["contradicted"]
    assert words("scaling", [*ours[1:], *theirs]) == ["underpowered"], "a seed without all sizes has no pair"
    assert "no record" in decide("scaling", theirs)[0].why


def test_labels() -> None:
    assert label(flatten(TrainConfig(model=replace(THEIRS, mechanism="ssmax", qk_norm=True)))) == (
        "Transformer, ssmax, QK norm"
    )
    far = replace(THEIRS, depth=2, position="none", window=(32, 0), kept=4)
    assert label(flatten(TrainConfig(model=far))) == "Transformer, NoPE, window 32/0, first 4 kept"
    assert (
        label(flatten(TrainConfig(model=replace(THEIRS, depth=2, position=("rope", "none")))))
        == "Transformer, rope/NoPE"
    )
    odd = replace(OURS, position="none", norm="none", acceptance=1.0)
    assert label(flatten(TrainConfig(model=odd, weight_decay=0.1))) == (
        "Multiscreen, no position, no TanhNorm, r = 1, decay 0.1"
    )


def test_claims_name_models_of_their_study() -> None:
    """A mistyped label would never have records."""
    for study in find_studies():
        if study.plan is not None:
            labels = {label(flatten(run)) for run in required_runs(study, lambda name: None).choosing.values()}
            assert {name for claim in study.claims for name in (claim.ours, claim.theirs)} <= labels


def test_a_repeated_run_agrees_or_not() -> None:
    records = [*seeds((2.0, 2.1, 2.2)), run_record(THEIRS, loss=3.0)]
    assert Repeat(replace(records[0], val_loss=1.95), records).agrees
    far = Repeat(replace(records[0], val_loss=2.2), records)
    assert not far.agrees
    assert "loss +0.2 from the record" in str(far)
    assert "the runs disagree" in str(far)
    diverged = Repeat(replace(records[0], state="diverged", val_loss=None), records)
    assert not diverged.agrees
    assert "diverged, but the record says finished" in str(diverged)
    assert Repeat(records[3], records).agrees, "an identical loss needs no spread"
    assert not Repeat(replace(records[3], val_loss=3.001), records).agrees
    assert "identical loss (3.0000; one seed)" in str(Repeat(records[3], records))
