"""keysift bench mechanisms: costs, disagreeing backends, and notes on what does not fit in memory."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from keysift.bench import mechanisms
from keysift.bench import peak_memory as memory
from keysift.bench.collector import Collector
from keysift.bench.mechanisms import FULL, QUICK, Case, Setting, family, fits, time_in_turns
from keysift.cli.main import _main
from keysift.core.errors import DisagreementError
from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS
from tests.bench.results import RESULT

TINY = replace(QUICK, lengths=(40,), target_length=40, heads=2, width=8, window=7)


def collector() -> Collector:
    return Collector(RESULT.machine, log=lambda line: None)


def test_every_mechanism_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(mechanisms, "QUICK", TINY)
    monkeypatch.setattr(mechanisms, "check", lambda *inputs: None)
    assert _main(["bench", "mechanisms", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    names = [row["what"] for row in result["rows"][::2]]
    positions = [f"{name}, ALiBi" for name in ("softmax", "differential_v1", "differential_v2")]
    positions += ["forgetting, gates of 0.95", "forgetting, gates of 0.999", "stick_breaking, shares of 0.001"]
    windows = [f"{name}, window of 7" for name in mechanisms.WINDOWED]
    assert names == [*(mechanism.name for mechanism in MECHANISMS), *positions, *windows]
    assert {row["against"] for row in result["rows"]} == {"SDPA"}
    assert len(result["targets"]) == 16, "seven families and windows, forward and forward + backward"
    assert all(target["met"] is None for target in result["targets"])


@pytest.mark.parametrize(("name", "setting"), [*mechanisms.SETTINGS, ("relu_squared", Setting("window", window=7))])
def test_settings_change_the_call_and_are_checked(name: str, setting: Setting) -> None:
    mechanism = MECHANISMS.find(name)
    case, plain = Case(mechanism, 40, 2, 8, setting), Case(mechanism, 40, 2, 8)
    assert not torch.allclose(case.ours("forward"), plain.ours("forward"))  # type: ignore[arg-type]
    assert mechanisms.disagreement(mechanism, case.backend, setting) is None


def test_shares_of_a_level_reach_the_first_key() -> None:
    stick_breaking = MECHANISMS.find("stick_breaking")
    level = next(setting for name, setting in mechanisms.SETTINGS if name == "stick_breaking")
    for setting, reached in ((level, True), (mechanisms.PLAIN, False)):
        case = Case(stick_breaking, 300, 2, 8, setting)
        q, k, _ = case.inputs
        shares = (q @ k.mT / math.sqrt(8)).sigmoid().median().item()
        assert shares == pytest.approx(1e-3 if reached else 0.5, rel=0.5)
        assert torch.equal(case.first[0], q)
        assert torch.equal(case.first[1], k)
        before = case.ours("forward")[:, :, -1]  # type: ignore[index]
        with torch.no_grad():
            case.inputs[2][:, :, 0] += 1e3
        assert torch.equal(case.ours("forward")[:, :, -1], before) != reached  # type: ignore[index]


def test_windows_are_compared_with_sdpa_over_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "check", lambda *inputs: None)
    monkeypatch.setattr(mechanisms, "seconds", lambda run: 24.0)
    ours = {"forward": [2.0, 1.0, 3.0], "forward + backward": [4.0]}
    monkeypatch.setattr(mechanisms, "interleave", lambda turns, rounds, limit: ours)
    slowest = mechanisms.time_windows(collector(), TINY)
    assert {step: speedup for step, (speedup, _) in slowest.items()} == {"forward": 12.0, "forward + backward": 6.0}


def test_sdpa_reads_the_same_inputs() -> None:
    case = Case(MECHANISMS.find("softmax"), 24, 2, 8)
    torch.testing.assert_close(case.ours("forward"), case.sdpa("forward"))
    torch.testing.assert_close(case.ours("forward + backward"), case.sdpa("forward + backward"))
    case = Case(MECHANISMS.find("differential_v1"), 24, 2, 8)
    q, k, v = case.inputs
    expected = F.scaled_dot_product_attention(q[:, ::2], k[:, ::2], v, is_causal=True)
    torch.testing.assert_close(case.sdpa("forward"), expected.detach())


def test_families_follow_from_the_rule() -> None:
    limits = {name: family(MECHANISMS.find(name)).max_cost for name in ("softmax", "softpick", "screening", "entmax15")}
    assert limits == {"softmax": 1.15, "softpick": 2.5, "screening": 2.5, "entmax15": 8.0}
    assert family(MECHANISMS.find("alpha_entmax")).max_cost is None
    limits = {name: family(MECHANISMS.find(name)).max_cost for name in ("tda", "stick_breaking", "forgetting")}
    assert limits == {"tda": 1.5, "stick_breaking": 1.5, "forgetting": 1.3}
    alibi = Setting("ALiBi", alibi=True)
    limits = {name: family(MECHANISMS.find(name), alibi).max_cost for name in ("softmax", "differential_v1")}
    assert limits == {"softmax": 1.3, "differential_v1": 2.2}
    assert (FULL.target_length, FULL.heads, FULL.width) == (4096, 8, 64)


def test_each_sdpa_call_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differential attention needs two: at twice the time of one its cost is 1."""
    names = [f"{side} {step}" for step in mechanisms.STEPS for side in ("ours", "sdpa")]
    times = dict(zip(names, ([6.0], [3.0], [8.0], [2.0]), strict=True))
    monkeypatch.setattr(mechanisms, "interleave", lambda turns, rounds, limit: times)
    monkeypatch.setattr(mechanisms, "check", lambda *inputs: None)
    results = collector()
    twice = time_in_turns(results, MECHANISMS.find("differential_v1"), TINY, 40)
    assert twice == {"forward": 1.0, "forward + backward": 2.0}
    once = time_in_turns(results, MECHANISMS.find("softmax"), TINY, 40)
    assert once == {"forward": 2.0, "forward + backward": 4.0}
    assert [row.speedup.median for row in results.rows if row.speedup] == [0.5, 0.25] * 2
    alibi = time_in_turns(results, MECHANISMS.find("differential_v1"), TINY, 40, Setting("ALiBi", alibi=True))
    assert alibi == {"forward": 2.0, "forward + backward": 4.0}, "its target is for both maps"


def test_a_wrong_backend_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*inputs: object, backend: str = "auto", **options: object) -> torch.Tensor:
        out = attend(*inputs, backend=backend, **options)  # type: ignore[call-overload]
        return out * 1.001 if backend == "blockwise" else out

    sigmoid = MECHANISMS.find("sigmoid")
    mechanisms.check(sigmoid, "blockwise")
    monkeypatch.setattr(mechanisms.agreement, "attend", wrong)
    with pytest.raises(DisagreementError):
        mechanisms.check(sigmoid, "blockwise")
    monkeypatch.setattr(mechanisms, "explain", lambda *_, **options: type("Choice", (), {"backend": "blockwise"}))
    results = collector()
    assert time_in_turns(results, sigmoid, TINY, 40) == {}
    assert results.rows == []
    assert "sigmoid at T = 40: not timed" in results.notes[0]


def test_notes_name_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    sparsemax = MECHANISMS.find("sparsemax")
    monkeypatch.setattr(mechanisms, "chosen_backend", lambda mechanism, length: "dense")
    monkeypatch.setattr(memory, "free_bytes", lambda: 1e9)
    assert fits(sparsemax, FULL, 1024)
    assert not fits(sparsemax, FULL, 16_384)
    results = collector()
    assert time_in_turns(results, sparsemax, FULL, 16_384) == {}
    assert results.notes == ["sparsemax at T = 16,384: not timed, its dense maps would not fit in memory"]
    monkeypatch.setattr(mechanisms, "chosen_backend", lambda mechanism, length: "blockwise")
    assert fits(sparsemax, FULL, 16_384)


def test_growth_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sigmoid = MECHANISMS.find("sigmoid")
    sizes = replace(TINY, memory=(1024, 4096))
    monkeypatch.setattr(
        mechanisms, "run_in_subprocess", lambda function, name, lengths, *sizes: [(n / 256) ** 2 for n in lengths]
    )
    assert mechanisms.extra_memory(collector(), sigmoid, sizes) == pytest.approx(2.0)
    assert mechanisms.extra_memory(collector(), sigmoid, TINY) is None
    assert mechanisms.extra_mb("sigmoid", [256], 2, 8)[0] < 64
    monkeypatch.setattr(memory, "STATUS", memory.Path("nowhere"))
    results = collector()
    assert mechanisms.extra_memory(results, sigmoid, sizes) is None
    assert "extra memory not measured" in results.notes[0]
    monkeypatch.setattr(memory, "available", lambda: None)
    assert memory.free_bytes() == math.inf
