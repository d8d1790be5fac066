"""keysift bench models and documents: contestants are what they are called, and figures mean what they say."""

import json
from collections.abc import Callable

import pytest
import torch

from keysift.bench import documents, models, timing
from keysift.bench.gather import Gathered
from keysift.bench.models import FULL, Sizes, crossing, filled, subjects
from keysift.bench.subjects import multiscreen, transformer_like
from keysift.bench.windowed import in_windows, windowed
from keysift.cli.main import _main
from keysift.core.errors import UnsupportedError
from keysift.evaluate.cached import check_cache
from keysift.kernels.attend import attend
from keysift.models.language import count
from tests.bench.results import RESULT
from tests.refusals import refuses

TINY = Sizes(
    psi=2,
    forward=(16, 40),
    rounds=2,
    train=(8,),
    train_tokens=16,
    decode=(300, 600),
    decode_from=300,
)


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "QUICK", TINY)
    monkeypatch.setattr(documents, "QUICK", documents.Sizes(psi=2, tokens=17, documents=3, batch=2, rounds=1))
    monkeypatch.setattr(timing, "MOST_REPEATS", 1)
    monkeypatch.setattr(models, "check", lambda made: None)
    monkeypatch.setattr(documents.agreement, "check_kernel", lambda: None)


@pytest.mark.usefixtures("_tiny")
def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["bench", "models", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["step"] for row in found["rows"]} == {"forward", "training step", "decode"}
    assert [target["target"] for target in found["targets"]] == [15.0, 4.0, 2.0, 1.1, 1.0]
    assert all(target["met"] is None for target in found["targets"])
    decoded = {(row["what"], row["tokens"]): row["cache_bytes"] for row in found["rows"] if row["step"] == "decode"}
    plain, other = "Multiscreen, windows as initialised", "Transformer"
    assert decoded[plain, 300] == decoded[plain, 600], "windows are full"
    assert decoded[other, 600] > 1.9 * decoded[other, 300]
    for step in ("forward", "training step", "decode"):
        assert sum(note.startswith(f"{step}: ") and "than the Transformer" in note for note in found["notes"]) == 3


@pytest.mark.usefixtures("_tiny")
def test_documents(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["bench", "documents", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["against"] == "one document a row"
    assert found["targets"][0]["target"] == 0.9
    assert (documents.FULL.psi, documents.FULL.tokens, documents.FULL.documents) == (6, 1024, 8)


@pytest.mark.slow
def test_models_agree_before_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = subjects(2)
    models.check(made)

    def asked(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(models, "check_cache", asked)
    with pytest.raises(AssertionError, match="asked"):
        models.measure(TINY, command="", say=lambda line: None)


def test_contestants_are_of_one_size() -> None:
    model = multiscreen(8)
    assert abs(count(transformer_like(model)) / count(model) - 1) < 0.01
    assert FULL.psi == 8


def test_infinite_tiles() -> None:
    """As many as in the paper's trained model, spread over the layers; the cache keeps everything for these alone."""
    one = subjects(8)["infinite"]
    cache = filled(one, 2000)
    limits = [limit for store in cache.stores for limit in store.limits]
    assert sum(limit == float("inf") for limit in limits) == 6 == round(0.094 * 64)
    assert max(sum(limit == float("inf") for limit in store.limits) for store in cache.stores) == 1
    assert cache.lengths == [2000]
    assert all(bool((x != 0).all()) for store in cache.stores for x in store.entries.values()), "every slot is filled"
    bytes_before = cache.nbytes
    for _ in range(3):
        models.decode_after(one.model, cache, 2000)
    assert (cache.lengths, cache.nbytes) == ([2001], bytes_before), "no token is timed with a copy of the cache"
    assert models.cache_bytes(one, 2000) == pytest.approx(cache.nbytes, rel=0.05)


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 29])
def test_windows_alone(tokens: int) -> None:
    q, k, v = (torch.randn(2, 3, tokens, 4, dtype=torch.float64) for _ in range(3))
    t = torch.arange(tokens)
    inside = (t[:, None] - t < 8) & (t[:, None] >= t)
    expected = attend("softmax", q, k, v, keep=inside, backend="dense")
    torch.testing.assert_close(in_windows(q, k, v, 8), expected)


def test_a_windowed_transformer_decodes_what_it_reads() -> None:
    model = windowed(transformer_like(multiscreen(2)), 8)
    check_cache(model, (8, 1, 1, 1, 1, 1))
    with refuses("a windowed cache is filled within its 8 tokens, then one by one", UnsupportedError):
        check_cache(model, (8, 2))


def test_the_crossing_is_told_whichever_way_it_falls() -> None:
    assert crossing({1: 0.5, 2: 2.0, 4: 3.0}) == "faster than the Transformer from 2 tokens on"
    assert crossing({1: 1.5, 2: 2.0}) == "faster than the Transformer at every length timed, 1 to 2"
    assert crossing({1: 0.5, 2: 0.9}) == "slower than the Transformer at every length timed, 1 to 2"
    assert crossing({1: 1.5, 2: 0.9}) == "faster than the Transformer at 1 tokens only"


def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = subjects(2)
    found = Gathered(RESULT.machine, say=lambda line: None)
    monkeypatch.setattr(models, "explain_at", lambda mechanism, length: "dense")
    monkeypatch.setattr(models, "free_bytes", lambda: 1e7)
    both: list[Callable[..., bool]] = [models.fits, models.holds]
    assert [ask(found, made["transformer"], 100_000) for ask in both] == [False, False]
    assert [ask(found, made["plain"], 100_000) for ask in both] == [True, True]
    assert all("not timed" in note for note in found.notes)
