"""Verdicts follow from the numbers by the stated rule, in both directions, and are undecided with too little data."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evidence.groups import best_groups, group_by_seed, label
from evidence.records import RunRecord, read_records
from evidence.repeats import Repeat
from evidence.rules import BEST_ROPE, RULES, Verdict
from evidence.study import ROOT, find_studies, read_study
from evidence.welch import Difference
from keysift.core.statistics import Sample
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


def sample(*values: float) -> Sample:
    return Sample(values=values)


def decide(study: str, records: Sequence[RunRecord]) -> list[Verdict]:
    """Verdicts of the claims of a study on these records."""
    groups = group_by_seed(records)
    return [RULES[claim.rule].decide(claim, groups) for claim in read_study(ROOT / study).claims]


def words(study: str, records: Sequence[RunRecord]) -> list[str]:
    return [verdict.word for verdict in decide(study, records)]


def test_a_difference_needs_its_interval_to_exclude_zero_and_three_seeds() -> None:
    low = sample(1.0, 1.1, 0.9)
    assert Difference(sample(1.5, 1.6, 1.4), low).word == "reproduced at this scale"
    assert Difference(low, sample(1.5, 1.6, 1.4)).word == "not reproduced"
    assert Difference(sample(1.1, 1.2, 1.0), low).word == "undecided", "0.1 with a standard error of 0.08"
    assert Difference(sample(1.5, 1.6), low).word == "undecided"
    # 2.8 standard errors, but nearly all of the spread is on one side: two degrees of freedom need 4.3.
    assert Difference(sample(2.0, 1.5, 1.1), sample(0.80, 0.81, 0.80)).word == "undecided"
    assert Difference(sample(2.0, 1.8, 1.9), sample(0.80, 0.81, 0.80)).word == "reproduced at this scale"
    assert "only 2 seeds" in str(Difference(sample(1.5, 1.6), low))
    assert "only 1 seed on" in str(Difference(sample(1.5), low))
    # Standard error sqrt(2 / 300), four degrees of freedom: t = 2.776.
    assert Difference(sample(1.5, 1.6, 1.4), low).interval == "+0.5 (+0.273 to +0.727)"
    assert "no interval" in Difference(sample(1.5), low).interval


def test_the_best_rate_has_every_seed() -> None:
    groups = group_by_seed(
        [*seeds((2.0, 2.1, 2.2), lr=0.1), run_record(loss=1.0, lr=0.2), run_record(loss=0.5, lr=0.3, state="diverged")]
    )
    (best,) = best_groups(groups)
    assert best.rate == 0.1
    assert [group.diverged for group in groups] == [0, 0, 1]
    assert groups[2].losses is None


def test_no_divergence() -> None:
    finished, diverged = seeds((2.0,) * 3), seeds((2.0, 2.0, 9.0), model=THEIRS)
    diverged[2] = replace(diverged[2], state="diverged")
    assert words("stability", [*finished, *diverged])[0] == "reproduced at this scale"
    assert words("stability", [*finished, *seeds((2.0,) * 3, model=THEIRS)])[0] == "not reproduced"
    assert words("stability", [*finished, *diverged[1:]])[0] == "undecided"
    assert "no record" in decide("stability", finished)[0].why
    verdict = decide("stability", [*finished, *diverged])[0]
    assert (verdict.effect, verdict.n) == ("0 of 3 Multiscreen runs diverged, 1 of 3 Transformer runs", "3")


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
    assert words("one-hop", [*ours, *theirs]) == ["reproduced at this scale", "not reproduced", "undecided"]
    assert words("two-hop", [*ours, *theirs])[0] == "not reproduced", "at four times the training length"
    assert words("one-hop", ours) == ["undecided"] * 3
    for share, word in ((60, "reproduced at this scale"), (20, "undecided")):
        records = [
            run_record(model, seed=n, lengths={(1, "as trained"): share, (16, "as trained"): far + n})
            for model, far in ((open_start, 15), (THEIRS, 10))
            for n in range(3)
        ]
        verdict = decide("one-hop", records)[0]
        assert verdict.word == word
        assert ("neither model has learned the task" in verdict.why) == (share == 20)


def test_loss_rise_lower() -> None:
    def record(model: MultiscreenArch | TransformerArch, seed: int, far: float, scaled: float) -> RunRecord:
        losses = [(128, "as trained", 2.0), (2048, "as trained", far)]
        losses += [(2048, "RoPE x2", scaled), (2048, "RoPE x16", scaled + 1)]
        points = [{"context": at, "setting": setting, "nats": nats + seed / 100} for at, setting, nats in losses]
        return replace(run_record(model, seed=seed), measures={"positions": points})

    records = [record(OURS, n, 2.1 + n / 100, 0.0) for n in range(3)]
    records += [record(THEIRS, n, 3.0 + n / 100, 1.9 + n / 100) for n in range(3)]
    assert [claim.their_setting for claim in read_study(ROOT / "positions").claims] == ["as trained", BEST_ROPE]
    assert words("positions", records) == ["reproduced at this scale", "not reproduced"]
    assert "+0.110 against +1.010" in decide("positions", records)[0].why
    assert words("positions", records[:3]) == ["undecided"] * 2


def test_loss_lower() -> None:
    whole, gateless = seeds((2.0, 2.01, 1.99)), seeds((2.2, 2.21, 2.19), model=replace(OURS, gate=False))
    verdicts = {verdict.claim: verdict.word for verdict in decide("ablation-text", [*whole, *gateless])}
    assert verdicts["Screening is worse without the gate"] == "reproduced at this scale"
    assert verdicts["Screening is worse with RoPE in place of MiPE"] == "undecided"
    start = replace(OURS, acceptance_start=(0.98,))
    models = (start, 2.0), (replace(start, gate=False), 2.2), (replace(OURS, acceptance=1.0), 1.8)
    records = [r for model, loss in models for r in seeds((loss, loss + 0.01, loss - 0.01), model=model)]
    verdicts = {verdict.claim: verdict.word for verdict in decide("ablation-recall", records)}
    assert verdicts["Screening is worse without the gate"] == "reproduced at this scale"
    fixed = "Screening is worse with the acceptance fixed at r = 1"
    assert verdicts[fixed] == "not reproduced", "a fixed acceptance has no start"
    spread = seeds((2.2, 2.21, 2.19), model=replace(OURS, acceptance_start=(0.5, 0.98)))
    assert words("start-text", [*whole, *spread]) == ["undecided", "not reproduced"]


def test_parameters_at_equal_loss() -> None:
    """The Transformer needs 2,000 parameters for what 1,000 do: halfway between 1,000 and 4,000 on a log scale."""
    theirs = [r for size, loss in ((1000, 3.0), (4000, 2.0)) for r in seeds((loss,) * 3, model=THEIRS, parameters=size)]
    ours = [r for size, loss in ((1000, 2.5), (1500, 2.25)) for r in seeds((loss,) * 3, parameters=size)]
    (verdict,) = decide("scaling", [*ours, *theirs])
    assert verdict.word == "reproduced at this scale"
    assert "0.50, 0.53 times" in verdict.why
    more = [r for size, loss in ((3000, 2.5), (9000, 2.25)) for r in seeds((loss,) * 3, parameters=size)]
    assert words("scaling", [*more, *theirs]) == ["not reproduced"]
    assert words("scaling", [*ours[1:], *theirs]) == ["undecided"]
    assert "no record" in decide("scaling", theirs)[0].why


def test_labels() -> None:
    assert label(flatten(TrainConfig(model=replace(THEIRS, mechanism="ssmax", qk_norm=True)))) == (
        "Transformer, ssmax, QK norm"
    )
    odd = replace(OURS, position="none", norm="none", acceptance=1.0)
    assert label(flatten(TrainConfig(model=odd, weight_decay=0.1))) == (
        "Multiscreen, no position, no TanhNorm, r = 1, decay 0.1"
    )


def test_claims_name_models_of_their_study() -> None:
    """A mistyped label would be undecided for ever."""
    for study in find_studies():
        labels = {group.label for group in group_by_seed(read_records(study.records).values())}
        for claim in study.claims:
            assert study.plan is None or {claim.ours, claim.theirs} <= labels, claim


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
