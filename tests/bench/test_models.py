"""`keysift bench models` and `keysift bench documents`, and the sizes and windows of their models."""

import json
from collections.abc import Callable

import pytest

from keysift.bench import contestants, model_memory, models, timing
from keysift.bench import packed_documents as documents
from keysift.bench.collector import Collector
from keysift.bench.contestants import build_cases
from keysift.bench.model_cases import matching_transformer, multiscreen
from keysift.bench.models import FULL, Sizes, describe_crossover, filled_cache
from keysift.cli.main import _main
from keysift.models.language_model import count_parameters
from tests.bench.results import RESULT

TINY = Sizes(
    psi=2,
    forward=(16, 40),
    rounds=2,
    train=(8,),
    train_tokens=16,
    decode=(300, 600),
    decode_from=300,
    memory_tokens=8,
)


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "QUICK", TINY)
    monkeypatch.setattr(documents, "QUICK", documents.Sizes(psi=2, tokens=17, documents=3, batch=2, rounds=1))
    monkeypatch.setattr(timing, "MAX_REPEATS", 1)
    monkeypatch.setattr(models, "check", lambda cases: None)
    monkeypatch.setattr(documents.agreement, "check_kernel", lambda: None)


@pytest.mark.usefixtures("_tiny")
def test_bench_models_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contestants, "why_not_compiled", lambda case: "no compiler here")
    monkeypatch.setattr(model_memory, "run_in_subprocess", lambda *arguments: 12.5)
    assert _main(["bench", "models", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["step"] for row in result["rows"]} == {"forward", "training step", "decode"}
    assert [target["target"] for target in result["targets"]] == [2.8, 38.0, 4.0, 2500, 1.1, 1.0]
    assert all(target["met"] is None for target in result["targets"])
    decoded = {(row["what"], row["tokens"]): row["cache_bytes"] for row in result["rows"] if row["step"] == "decode"}
    multiscreen_name, transformer_name = "Multiscreen, windows as initialised", "Transformer"
    assert decoded[multiscreen_name, 300] == decoded[multiscreen_name, 600], "the windows are full"
    assert decoded[transformer_name, 600] > 1.9 * decoded[transformer_name, 300]
    windowed = "Transformer, windows of 256"
    assert decoded[windowed, 600] == decoded[windowed, 300], "the window is full"
    assert {row["what"] for row in result["rows"] if row["extra_mb"] == 12.5} >= {multiscreen_name, windowed}
    assert "Transformer, torch.compile: not timed, torch.compile failed (no compiler here)" in result["notes"]
    for step in ("forward", "training step", "decode"):
        assert sum(note.startswith(f"{step}: ") and "than the Transformer" in note for note in result["notes"]) == 2


@pytest.mark.usefixtures("_tiny")
def test_bench_documents_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert _main(["bench", "documents", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"][0]["against"] == "one document per row"
    assert result["targets"][0]["target"] == 0.9
    assert (documents.FULL.psi, documents.FULL.tokens, documents.FULL.documents) == (6, 1024, 8)


@pytest.mark.slow
def test_models_are_checked_before_they_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = build_cases(2)
    models.check(cases)

    def fail(*_: object) -> None:
        raise AssertionError("checked")

    monkeypatch.setattr(models, "check_cache", fail)
    with pytest.raises(AssertionError, match="checked"):
        models.measure(TINY, command="", log=lambda line: None)


def test_models_have_the_same_size() -> None:
    model = multiscreen(8)
    assert abs(count_parameters(matching_transformer(model)) / count_parameters(model) - 1) < 0.01
    assert FULL.psi == 8


def test_number_of_infinite_tiles() -> None:
    """9.4% of the tiles, as in the paper's trained model, at most one per layer. Only they cache every key."""
    case = build_cases(8)["infinite"]
    cache = filled_cache(case, 2000)
    limits = [limit for store in cache.layers for limit in store.limits]
    assert sum(limit == float("inf") for limit in limits) == 6 == round(0.094 * 64)
    assert max(sum(limit == float("inf") for limit in store.limits) for store in cache.layers) == 1
    assert cache.lengths == [2000]
    assert all(bool((x != 0).all()) for store in cache.layers for x in store.entries.values()), "every slot is filled"
    bytes_before = cache.nbytes
    for _ in range(3):
        models.decode_after(case.model, cache, 2000)
    assert (cache.lengths, cache.nbytes) == ([2001], bytes_before), "timing a token never includes a copy of the cache"
    assert models.cache_bytes(case, 2000) == pytest.approx(cache.nbytes, rel=0.05)


def test_describe_crossover() -> None:
    assert describe_crossover({1: 0.5, 2: 2.0, 4: 3.0}) == "faster than the Transformer from 2 tokens on"
    assert describe_crossover({1: 1.5, 2: 2.0}) == "faster than the Transformer at every length timed, 1 to 2"
    assert describe_crossover({1: 0.5, 2: 0.9}) == "slower than the Transformer at every length timed, 1 to 2"
    assert describe_crossover({1: 1.5, 2: 0.9}) == "faster than the Transformer at 1 tokens only"


def test_cases_that_do_not_fit_in_memory_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = build_cases(2)
    results = Collector(RESULT.machine, log=lambda line: None)
    monkeypatch.setattr(models, "chosen_backend", lambda mechanism, length: "dense")
    monkeypatch.setattr(models, "free_bytes", lambda: 1e7)
    checks: list[Callable[..., bool]] = [models.fits, models.cache_fits]
    assert [check(results, cases["transformer"], 100_000) for check in checks] == [False, False]
    assert [check(results, cases["plain"], 100_000) for check in checks] == [True, True]
    assert all("not timed" in note for note in results.notes)
