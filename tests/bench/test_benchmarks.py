"""The other benchmarks at tiny sizes: what they print, and what they refuse to time."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from keysift.bench import contestants, overhead, timing, tokenization, train
from keysift.bench.decode import times as decode
from keysift.bench.search import missed
from keysift.bench.search import times as search
from keysift.cli.main import _main
from keysift.core.errors import DisagreementError, TrainingError
from keysift.data.corpus import Corpus
from keysift.records.bench import Result
from tests.bench.test_llama import TINY
from tests.machine import needs_kernel
from tests.refusals import refuses


def quiet(line: str) -> None:
    """A log that prints nothing."""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert _main(["bench", *arguments, "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without transformers, the Llama is timed alone."""
    monkeypatch.setattr("keysift.cli.verbs.bench.find_spec", lambda name: None)
    monkeypatch.setattr(decode, "QUICK", replace(decode.QUICK, llama=TINY))
    monkeypatch.setattr(decode, "WARM", 270)
    monkeypatch.setattr(decode, "SHORT", 271)
    result = printed(capsys, "decode", "--quick", "--tokens", "22", "--psi", "2")
    assert result["command"] == "keysift bench decode --quick --tokens 22 --psi 2"
    rows = result["rows"]
    assert isinstance(rows, list)
    assert [row["tokens"] for row in rows[3:]] == [281, 271, 292, 271]
    assert rows[3]["cache_bytes"] == rows[5]["cache_bytes"] > 0
    assert [row["against"] for row in rows[:3]] == ["", "", ""]
    assert "Llama: not compared with transformers, which is not installed" in str(result["notes"])
    spent = re.findall(
        r"(\d+) us were spent in the library, (\d+) us in checks before it, (\d+) us in the search",
        str(result["notes"]),
    )
    assert len(spent) == 3
    assert all(int(us) > 0 for parts in spent for us in parts)
    targets = result["targets"]
    assert isinstance(targets, list)
    assert [target["met"] for target in targets] == [None] * 5


def test_growing_decode_time_misses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take longer in the second half, where the control's do not, miss the target."""
    clock = iter(range(10**9))
    monkeypatch.setattr(decode.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(decode, "FULL", decode.Sizes(tokens=20, psi=2, llama=TINY))
    step = decode.Decoder.step
    monkeypatch.setattr(decode.Decoder, "step", lambda self: step(self) * (2.0 if self.seen > 525 else 1.0))
    result = decode.measure(decode.FULL, command="", log=quiet)
    assert [(target.value, target.met) for target in result.targets[3:]] == [
        (pytest.approx(1.8, rel=0.2), False),
        (1.0, True),
    ]


def test_tokenise(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("keys and values\n" * 4000)
    tiny = replace(tokenization.QUICK, bpe_megabytes=0.02, vocabulary=260, rounds=1, file=text)
    result = tokenization.measure(tiny, command="", log=quiet)
    assert [row.step for row in result.rows] == ["tokenise"] * len(result.rows)
    assert result.rows[0].what == "bytes, 1 worker"
    assert result.rows[0].tokens == 64_020
    assert all(row.mb_per_s and row.tokens_per_s for row in result.rows)


def test_a_lossy_tokenizer_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("keys and values\n" * 100)
    read = Corpus.read
    monkeypatch.setattr(Corpus, "read", lambda self, start, stop: read(self, start, stop)[::-1])
    with refuses("bytes does not give the text back, so it is not timed", DisagreementError):
        tokenization.measure(replace(tokenization.QUICK, rounds=1, file=text), command="", log=quiet)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> train.Sizes:
    monkeypatch.setenv("KEYSIFT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"{number} keys, and {number} of them refused. " * 20)
    monkeypatch.setattr(contestants, "why_not_compiled", lambda case: "no compiler here")
    return train.Sizes(
        psi=2, context=16, batch_tokens=64, steps=2, data=str(folder), lengths=(8,), step_tokens=16, rounds=2
    )


def test_train(trained: train.Sizes) -> None:
    result: Result = train.measure(trained, command="", log=quiet)
    loop, models, *steps = result.rows
    assert [row.what for row in steps] == [
        "Multiscreen, windows as initialised",
        "Transformer",
        "Transformer, windows of 256",
    ]
    assert all((row.sgemm_share or 0) > 0 for row in steps)
    assert [(target.target, target.met) for target in result.targets] == [(train.SGEMM_TARGET, None)]
    assert "projections run through oneDNN" in result.notes[0]
    assert "time by operator" in result.notes[-1]
    assert "keysift::tile_backward" in result.notes[-1]
    assert loop.against == "bare steps"
    assert models.against.startswith("Transformer, ")
    assert (models.tokens_per_s or 0) > 0


@needs_kernel
def test_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_REPEATS", 1)
    monkeypatch.setattr(search.machine, "with_peaks", lambda examined: examined)
    sizes = search.Sizes(contexts=(4096, 5000), text_tokens=300, psi=2, rounds=1, pairs=12_000, forward=300)
    result = search.measure(sizes, command="", log=quiet)
    assert [target.met for target in result.targets] == [None] * len(result.targets)
    values = {target.name: target.value for target in result.targets}
    assert [value for name, value in values.items() if name.startswith("missed keys")] == [0]
    assert [value for name, value in values.items() if "memory" in name] == [pytest.approx(27, abs=6)]
    settings = {row.what: row.setting for row in result.rows if row.tokens == 5000}
    assert settings["random keys, r = 0.92"].startswith("auto: accepted 3")
    assert sum(what.startswith("one-hop-multiscreen, layer ") for what in settings) == 4


@needs_kernel
def test_a_missed_key_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = search.TileCase.counts
    monkeypatch.setattr(
        search.TileCase, "counts", lambda case: {"accepted": right(case)["accepted"] - (case.search == "sketch")}
    )
    tiles = sum(1 for dtype in missed.DTYPES.values() for _ in missed.tiles(4_000, dtype))
    assert search.missed_keys(12_000) == tiles


def test_overhead() -> None:
    sizes = overhead.Sizes(key_widths=(4,), value_width=8, tokens=6, rounds=2)
    result = overhead.measure(sizes, command="", log=quiet)
    assert [row.what for row in result.rows] == [f"attend, {name}" for name in sizes.mechanisms]
    assert result.rows[0].against == "SDPA"
    assert [(target.target, target.met) for target in result.targets] == [(40.0, None)] * 4


def test_a_loop_with_other_losses_is_not_timed(trained: train.Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    right = train.BareStep.step
    monkeypatch.setattr(train.BareStep, "step", lambda self, number, batch: (right(self, number, batch)[0] + 1, 1.0))
    with refuses("step 1: the loop's loss is .*; nothing is timed until they agree", TrainingError):
        train.measure(trained, command="", log=quiet)
