"""Verdicts follow from the numbers by the stated rule, both ways, and say undecided where there is too little."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from keysift.models.arch import MultiscreenArch, TransformerArch
from keysift.sweep import claims
from keysift.sweep.groups import Difference, Sample, at_best, groups, label
from keysift.sweep.outline import read_plan
from keysift.sweep.pages import PAGES, Page
from keysift.sweep.records import Record, read_records, write_records
from keysift.sweep.repeats import AGAIN, Repeat
from keysift.train.config import TrainConfig, flatten
from keysift.web import evidence
from keysift.web.evidence_figures import figure
from keysift.web.evidence_tables import tables

RECIPES = Path(__file__).parents[2] / "recipes" / "evidence"
OURS, THEIRS = MultiscreenArch.psi(2), TransformerArch(depth=1, heads=2, width=8)


def made(
    model: MultiscreenArch | TransformerArch = OURS,
    loss: float = 2.0,
    seed: int = 0,
    lr: float = 0.01,
    parameters: int = 1000,
    state: str = "finished",
    lengths: dict[tuple[int, str], int] | None = None,
    **fields: Any,
) -> Record:
    config = TrainConfig(model=model, steps=9, lr=lr, seed=seed, weight_decay=0.0, **fields)
    cells = [
        {"ratio": ratio, "setting": setting, "right": right, "asked": 100, "length": 64 * ratio, "depth": 0.5}
        for (ratio, setting), right in (lengths or {}).items()
    ]
    return Record(
        name=f"{label(flatten(config))}_{parameters}_lr={lr:g}_seed={seed}",
        asked={},
        settings=flatten(config),
        parameters=parameters,
        stream="",
        state=state,
        step=9,
        seconds=60.0,
        warmed=3.0,
        ended=loss,
        val_loss=loss,
        bits_per_byte=None,
        accuracy=None,
        validations=[[9, loss]],
        curves={},
        sessions=[{"began": "2026-01-01T00:00", "commit": "c", "cpu": "one", "threads": 1, "torch": "2", "load": 0.0}],
        measures={"lengths": cells} if cells else {},
    )


def seeds(losses: tuple[float, ...], **rest: Any) -> list[Record]:
    return [made(loss=loss, seed=seed, **rest) for seed, loss in enumerate(losses)]


def test_a_difference_is_decided_by_twice_its_error_and_three_seeds() -> None:
    low = Sample((1.0, 1.1, 0.9))
    assert Difference(Sample((1.5, 1.6, 1.4)), low).word == "reproduced at this scale"
    assert Difference(low, Sample((1.5, 1.6, 1.4))).word == "not reproduced"
    assert Difference(Sample((1.1, 1.2, 1.0)), low).word == "undecided", "0.1 with a standard error of 0.08"
    assert Difference(Sample((1.5, 1.6)), low).word == "undecided"
    # 2.8 standard errors, but nearly all of the spread is on one side: two degrees of freedom need 4.3.
    assert Difference(Sample((2.0, 1.5, 1.1)), Sample((0.80, 0.81, 0.80))).word == "undecided"
    assert Difference(Sample((2.0, 1.8, 1.9)), Sample((0.80, 0.81, 0.80))).word == "reproduced at this scale"
    assert "only 2 seeds" in str(Difference(Sample((1.5, 1.6)), low))
    assert "only 1 seed on" in str(Difference(Sample((1.5,)), low))


def test_the_best_rate_has_every_seed() -> None:
    found = groups([*seeds((2.0, 2.1, 2.2), lr=0.1), made(loss=1.0, lr=0.2), made(loss=0.5, lr=0.3, state="diverged")])
    (best,) = at_best(found)
    assert best.rate == 0.1
    assert [one.diverged for one in found] == [0, 0, 1]
    assert found[2].losses is None


def test_stability() -> None:
    calm, wild = seeds((2.0,) * 3), seeds((2.0, 2.0, 9.0), model=THEIRS)
    wild[2] = replace(wild[2], state="diverged")
    assert claims.stability(groups([*calm, *wild]))[0].word == "reproduced at this scale"
    assert claims.stability(groups([*calm, *seeds((2.0,) * 3, model=THEIRS)]))[0].word == "not reproduced"
    assert claims.stability(groups([*calm, *wild[1:]]))[0].word == "undecided"
    assert "no record" in claims.stability(groups(calm))[0].why


def test_retrieval() -> None:
    open_start = replace(OURS, acceptance_start=(0.98,))
    told = {(16, "as trained"): 90, (16, "windows expanded"): 97, (4, "as trained"): 10}
    ours = [made(open_start, seed=n, lengths={key: right + n for key, right in told.items()}) for n in range(3)]
    cells = {(16, "as trained"): 40, (16, "RoPE scaled"): 99, (4, "as trained"): 50}
    theirs = [made(THEIRS, seed=n, lengths={key: right - n for key, right in cells.items()}) for n in range(3)]
    words = [verdict.word for verdict in claims.retrieval(groups([*ours, *theirs]))]
    assert words == ["reproduced at this scale", "not reproduced", "undecided"]
    assert claims.retrieval(groups([*ours, *theirs]), ratio=4)[0].word == "not reproduced"
    assert [verdict.word for verdict in claims.retrieval(groups(ours))] == ["undecided"] * 3
    for share, word in ((60, "reproduced at this scale"), (20, "undecided")):
        unlearned = [
            made(model, seed=n, lengths={(1, "as trained"): share, (16, "as trained"): far + n})
            for model, far in ((open_start, 15), (THEIRS, 10))
            for n in range(3)
        ]
        verdict = claims.retrieval(groups(unlearned))[0]
        assert verdict.word == word
        assert ("neither has learned the task" in verdict.why) == (share == 20)


def test_beyond_the_training_length() -> None:
    def read(model: MultiscreenArch | TransformerArch, seed: int, far: float, scaled: float) -> Record:
        told = [(128, "as trained", 2.0), (2048, "as trained", far)]
        told += [(2048, "RoPE x2", scaled), (2048, "RoPE x16", scaled + 1)]
        points = [{"context": at, "setting": setting, "nats": nats + seed / 100} for at, setting, nats in told]
        return replace(made(model, seed=seed), measures={"positions": points})

    records = [read(OURS, n, 2.1 + n / 100, 0.0) for n in range(3)]
    records += [read(THEIRS, n, 3.0 + n / 100, 1.9 + n / 100) for n in range(3)]
    found = claims.beyond(groups(records))
    page = next(page for page in PAGES if page.key == "e3-positions")
    assert figure(page, groups(records)).startswith("<svg"), "from half the training length on"
    assert [verdict.word for verdict in found] == ["reproduced at this scale", "not reproduced"]
    assert "+0.110 against +1.010" in found[0].why
    assert [verdict.word for verdict in claims.beyond(groups(records[:3]))] == ["undecided"] * 2


def test_parts_and_starts() -> None:
    whole, gateless = seeds((2.0, 2.01, 1.99)), seeds((2.2, 2.21, 2.19), model=replace(OURS, gate=False))
    found = {verdict.claim: verdict.word for verdict in claims.worse_without(groups([*whole, *gateless]))}
    assert found["Screening is worse with no gate"] == "reproduced at this scale"
    assert found["Screening is worse with RoPE"] == "undecided"
    start = replace(OURS, acceptance_start=(0.98,))
    parts = (start, 2.0), (replace(start, gate=False), 2.2), (replace(OURS, acceptance=1.0), 1.8)
    records = [one for model, loss in parts for one in seeds((loss, loss + 0.01, loss - 0.01), model=model)]
    found = {v.claim: v.word for v in claims.worse_without(groups(records), whole="Multiscreen, open start")}
    assert found["Screening is worse with no gate"] == "reproduced at this scale"
    assert found["Screening is worse with r = 1"] == "not reproduced", "it has no start"
    spread = seeds((2.2, 2.21, 2.19), model=replace(OURS, acceptance_start=(0.5, 0.98)))
    words = {verdict.claim: verdict.word for verdict in claims.starts(groups([*whole, *spread]))}
    assert list(words.values()) == ["undecided", "not reproduced"]


def test_parameters_at_equal_loss() -> None:
    """The Transformer needs 2,000 parameters for what 1,000 do: halfway between 1,000 and 4,000 on a log scale."""
    theirs = [r for size, loss in ((1000, 3.0), (4000, 2.0)) for r in seeds((loss,) * 3, model=THEIRS, parameters=size)]
    ours = [r for size, loss in ((1000, 2.5), (1500, 2.25)) for r in seeds((loss,) * 3, parameters=size)]
    (verdict,) = claims.fewer_parameters(groups([*ours, *theirs]))
    assert verdict.word == "reproduced at this scale"
    assert "0.50, 0.53 times" in verdict.why
    more = [r for size, loss in ((3000, 2.5), (9000, 2.25)) for r in seeds((loss,) * 3, parameters=size)]
    assert claims.fewer_parameters(groups([*more, *theirs]))[0].word == "not reproduced"
    assert claims.fewer_parameters(groups([*ours[1:], *theirs]))[0].word == "undecided"
    assert "no record" in claims.fewer_parameters(groups(theirs))[0].why


def test_labels() -> None:
    assert label(flatten(TrainConfig(model=replace(THEIRS, mechanism="ssmax", qk_norm=True)))) == (
        "Transformer, ssmax, QK norm"
    )
    odd = replace(OURS, position="none", norm="none", acceptance=1.0)
    assert label(flatten(TrainConfig(model=odd, weight_decay=0.1))) == (
        "Multiscreen, no position, no TanhNorm, r = 1, decay 0.1"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.key)
def test_a_page_with_and_without_records(page: Page, tmp_path: Path) -> None:
    names = {f"{one.key}.md" for one in PAGES} | {"README.md", "e4-latency.md"}
    assert set(evidence.rendered(tmp_path, RECIPES)) == names
    records = [*seeds((2.0, 2.1, 2.2)), *seeds((3.0,), model=THEIRS, lengths={(1, "as trained"): 50})]
    file = tmp_path / "evidence" / f"{page.study}.jsonl"
    write_records(file, records)
    write_records(file.parent / AGAIN / file.name, [replace(records[0], val_loss=2.05)])
    assert list(read_records(file).values()) == records
    files = evidence.rendered(tmp_path, RECIPES)
    made_of = files[f"{page.key}.md"]
    assert (f"{page.key}.svg" in files) == (f"({page.key}.svg)" in made_of) == (page.figure != "positions")
    if f"{page.key}.svg" in files:
        assert ElementTree.fromstring(files[f"{page.key}.svg"]).tag.endswith("svg")
    assert "2.1000 ± 0.1000" in made_of
    assert f"4 of {read_plan(RECIPES / f'{page.study}.toml').runs} runs, 4 minutes" in made_of
    assert "loss 2.0500, +0.05 from its record, beside a standard deviation over seeds of 0.1; it holds" in made_of
    assert page.study in files["README.md"]
    write_records(file.parent / AGAIN / file.name, [replace(records[0], asked={**records[0].asked, "steps": 10**6})])
    assert "Made a second time" not in evidence.rendered(tmp_path, RECIPES)[f"{page.key}.md"], "of another setting"


def test_the_index_is_in_order_and_has_the_latency(tmp_path: Path) -> None:
    told = evidence.rendered(tmp_path, RECIPES)["README.md"].splitlines()
    numbers = [re.search(r"\((e\d)-", line)[1] for line in told if "](e" in line]  # type: ignore[index]
    assert numbers == sorted(numbers)
    assert set(numbers) == {f"e{n}" for n in range(1, 8)}


def test_a_second_run_holds_or_not() -> None:
    records = [*seeds((2.0, 2.1, 2.2)), made(THEIRS, loss=3.0)]
    assert Repeat(replace(records[0], val_loss=1.95), records).holds
    far = Repeat(replace(records[0], val_loss=2.2), records)
    assert not far.holds
    assert "+0.2 from its record" in str(far)
    assert "it does not hold" in str(far)
    assert not Repeat(replace(records[0], state="diverged", val_loss=None), records).holds
    assert Repeat(records[3], records).holds, "the same to the bit needs no spread"
    assert not Repeat(replace(records[3], val_loss=3.001), records).holds
    assert "no spread, as it has one seed" in str(Repeat(records[3], records))


def test_windows_and_turning_are_on_their_pages() -> None:
    tiles = [{"layer": 0, "windows": [2.0, 1234.0], "acceptances": [0.5, 0.5]}]
    long = [replace(one, measures={"windows": tiles}) for one in seeds((2.0, 2.1, 2.2))]
    by_key = {page.key: page for page in PAGES}
    assert "| Multiscreen | 0.01 | 1,234, 1,234, 1,234 |" in tables(by_key["e2-one-hop-long"], groups(long))
    steps = [float(2**n) for n in range(8)]
    curves = {
        "norms.tiles.q_proj.weight": [[step, 1 + step / 64] for step in steps],
        "angles.tiles.q_proj.weight": [[step, 0.1 * step**-0.5] for step in steps],
    }
    turned = [replace(one, curves=curves) for one in seeds((2.0, 2.1, 2.2))]
    assert "| Multiscreen | 0.01 | 2.95x | 0.0088 | -0.50 |" in tables(by_key["e1-stability"], groups(turned))
