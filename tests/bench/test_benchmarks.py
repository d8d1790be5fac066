"""The other benchmarks at tiny sizes: what they print, and what they refuse to time."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from keysift.bench import decode, tokenise, train
from keysift.bench.record import Result
from keysift.cli.main import _main
from keysift.core.errors import DisagreementError, TrainingError
from keysift.data.corpus import Corpus
from keysift.evaluate.cached import check_cache
from keysift.models.multiscreen import MultiscreenConfig
from keysift.nn.store import Store
from tests.models.checks import opened
from tests.refusals import refuses


def quiet(line: str) -> None:
    """Says nothing."""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert _main(["bench", *arguments, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_decode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(decode, "WARM", 270)
    monkeypatch.setattr(decode, "SHORT", 271)
    found = printed(capsys, "decode", "--quick", "--tokens", "22", "--psi", "2")
    assert found["command"] == "keysift bench decode --quick --tokens 22 --psi 2"
    rows = found["rows"]
    assert isinstance(rows, list)
    assert [row["tokens"] for row in rows] == [281, 271, 292, 271]
    assert rows[0]["cache_bytes"] == rows[2]["cache_bytes"] > 0
    targets = found["targets"]
    assert isinstance(targets, list)
    assert [target["met"] for target in targets] == [None, None]


def test_a_growing_decode_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that take longer in the second half, where the control's do not, miss the target."""
    clock = iter(range(10**9))
    monkeypatch.setattr(decode.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(decode, "FULL", decode.Sizes(tokens=20, psi=2))
    step = decode.Decoder.step
    monkeypatch.setattr(decode.Decoder, "step", lambda self: step(self) * (2.0 if self.seen > 525 else 1.0))
    found = decode.measure(decode.FULL, command="", say=quiet)
    assert [(target.value, target.met) for target in found.targets] == [
        (pytest.approx(1.8, rel=0.2), False),
        (1.0, True),
    ]


def test_a_wrong_cache_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = opened(MultiscreenConfig.psi(2, vocab_size=17))
    check_cache(model, (5, 3, 1, 1))
    put = Store._put
    # Not scaled: screening reads the direction of a value.
    monkeypatch.setattr(Store, "_put", lambda self, new, write: put(self, {**new, "v": new["v"] + 1e-3}, write))
    with refuses("logits through the cache are off by .* a wrong answer is not timed", DisagreementError):
        check_cache(model, (5, 3, 1, 1))


def test_tokenise(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("keys and values\n" * 4000)
    tiny = replace(tokenise.QUICK, bpe_megabytes=0.02, vocabulary=260, rounds=1, file=text)
    found = tokenise.measure(tiny, command="", say=quiet)
    assert [row.step for row in found.rows] == ["tokenise"] * len(found.rows)
    assert found.rows[0].what == "bytes, 1 worker"
    assert found.rows[0].tokens == 64_020
    assert all(row.mb_per_s and row.tokens_per_s for row in found.rows)


def test_a_tokenizer_that_loses_text_is_not_timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("keys and values\n" * 100)
    read = Corpus.read
    monkeypatch.setattr(Corpus, "read", lambda self, start, stop: read(self, start, stop)[::-1])
    with refuses("bytes does not give the text back, so it is not timed", DisagreementError):
        tokenise.measure(replace(tokenise.QUICK, rounds=1, file=text), command="", say=quiet)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> train.Sizes:
    monkeypatch.setenv("KEYSIFT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"{number} keys, and {number} of them refused. " * 20)
    return train.Sizes(psi=2, context=16, batch_tokens=64, steps=2, data=str(folder))


def test_train(trained: train.Sizes) -> None:
    found: Result = train.measure(trained, command="", say=quiet)
    loop, beside = found.rows
    assert loop.against == "bare steps"
    assert beside.against.startswith("Transformer, ")
    assert (beside.tokens_per_s or 0) > 0


def test_a_loop_that_computes_something_else_is_not_timed(
    trained: train.Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = train.Bare.step
    monkeypatch.setattr(train.Bare, "step", lambda self, number, batch: (right(self, number, batch)[0] + 1, 1.0))
    with refuses("step 1: the loop's loss is .*; nothing is timed until they agree", TrainingError):
        train.measure(trained, command="", say=quiet)
