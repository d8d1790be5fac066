"""Turns, ratios, targets, resuming and memory: the arithmetic of benchmarks."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from keysift.bench import peak_memory as memory
from keysift.bench import timing
from keysift.bench.attention_cases import DenseCase, ScreeningCase, SoftmaxCase
from keysift.bench.collector import Collector, resumable
from keysift.bench.screening import kernel_mb
from keysift.bench.subprocess_call import run_in_subprocess
from keysift.core.config import load, save
from keysift.records.bench import Result, at_least, at_most
from tests.bench.results import RESULT
from tests.machine import needs_kernel
from tests.refusals import refuses


def test_cases_take_turns() -> None:
    order: list[str] = []

    def slow(name: str) -> None:
        order.append(name)
        start = timing.time.perf_counter()
        while timing.time.perf_counter() - start < 1.1 * timing.LONG_ENOUGH:
            pass

    times = timing.interleave({"a": lambda: slow("a"), "b": lambda: slow("b")}, rounds=2)
    assert order == ["a", "b"] * 3, "one turn each to warm up, then two rounds"
    assert all(len(samples) == 2 and min(samples) >= timing.LONG_ENOUGH for samples in times.values())


def test_a_fast_case_runs_several_times_per_turn() -> None:
    calls: list[int] = []
    timing.interleave({"quick": lambda: calls.append(1)}, rounds=1)
    assert len(calls) == 1 + 1 + timing.MAX_REPEATS


def test_a_limit_ends_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def take(seconds: float) -> None:
        clock[0] += seconds

    def rounds(limit: float) -> dict[str, list[float]]:
        return timing.interleave({"slow": lambda: take(10.0), "quick": lambda: take(0.01)}, rounds=9, limit=limit)

    assert rounds(15.0)["slow"] == pytest.approx([10.0]), "the first turn counts"
    assert clock[0] == pytest.approx(10 + 7 * 0.01), "a fast case has one more turn, of several calls"
    assert len(rounds(25.0)["slow"]) == 2
    assert len(rounds(1e9)["slow"]) == 9


def test_an_interrupted_benchmark_resumes(tmp_path: Path) -> None:
    draft = tmp_path / "models.part"
    lines: list[str] = []

    def stopped() -> int:
        raise KeyboardInterrupt

    def run(second: Callable[[], int], command: str = "keysift bench models") -> list[int]:
        results = Collector(RESULT.machine, log=lines.append)
        with resumable(draft, command):
            return [results.measure_once("first", lambda: len(lines)), results.measure_once("second", second)]

    with pytest.raises(KeyboardInterrupt):
        run(stopped)
    assert len(draft.read_text().splitlines()) == 2, "a header and what was measured"
    with draft.open("a") as file:
        file.write('["second", 5')  # killed while it wrote
    with pytest.raises(KeyboardInterrupt):
        run(stopped)
    assert len(draft.read_text().splitlines()) == 2, "half a line is forgotten"
    with pytest.raises(KeyboardInterrupt):
        run(stopped, "keysift bench models --quick")
    assert run(lambda: 7, "keysift bench models --quick") == [5, 7], "another command had started anew"
    assert not draft.exists()
    assert "first: measured before" in lines


def test_ratios_are_taken_round_by_round() -> None:
    """A machine that is ten times slower in the second round does not change the ratio."""
    result = timing.quartiles(timing.ratios([6.0, 60.0, 6.0], [2.0, 20.0, 2.0]))
    assert (result.low, result.median, result.high) == (3.0, 3.0, 3.0)


def test_quartiles() -> None:
    result = timing.quartiles([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (result.low, result.median, result.high) == (2.0, 3.0, 4.0)
    assert timing.quartiles([7.0]).high == 7.0


def test_targets_are_met_or_missed_at_full_size_only() -> None:
    assert at_least("x", 3.0, 3.0, full_size=True).met is True
    assert at_least("x", 2.99, 3.0, full_size=True).met is False
    assert at_most("x", 1.05, 1.05, full_size=True).met is True
    assert at_most("x", 1.06, 1.05, full_size=True).met is False
    assert at_least("x", 9.0, 3.0, full_size=False).met is None


def test_a_result_survives_json(tmp_path: Path) -> None:
    save(RESULT, tmp_path / "r.json")
    assert load(Result, tmp_path / "r.json") == RESULT


@pytest.mark.parametrize("window", [0.9, 2.0, 2.5, 9.0, 40.0, math.inf])
def test_pairs_inside_the_window(window: float) -> None:
    case = ScreeningCase(tokens=9, tiles=2, window=window)
    t = torch.arange(9)
    d = t[:, None] - t
    assert case.pairs == 2 * int(((d >= 0) & (d < window)).sum())


@needs_kernel
def test_cases_compute_the_same() -> None:
    """The kernel and the dense definition run on the same inputs, every tile of them."""
    case = ScreeningCase(tokens=40, tiles=6, acceptance=0.9)
    dense = DenseCase(case)
    whole = torch.cat([part[0][0] for part in dense._parts()], dim=1)
    assert torch.equal(whole, case.leaves[0])
    assert case.window == "windows 2 .. 257"
    case.record_forward()
    for fast, again in zip(case.backward(), case.forward_backward(), strict=True):
        assert torch.equal(fast, again)
    assert case.forward().shape == (1, 6, 40, 64)
    dense.forward()
    dense.forward_backward()
    softmax = SoftmaxCase(tokens=8, heads=2)
    assert softmax.forward().shape == (1, 2, 8, 64)
    assert len(softmax.forward_backward()) == 3


def test_peak_memory_counts_touched_pages() -> None:
    def ten_megabytes() -> torch.Tensor:
        return torch.ones(10, 2**18) + 1  # two tensors of ten megabytes, one of them returned

    result = memory.peak_mb(ten_megabytes, output_bytes=10 * 2**20)
    assert 9 < result < 14
    assert memory.peak_mb(lambda: torch.ones(10, 2**18), output_bytes=10 * 2**20) < 3


@needs_kernel
@pytest.mark.slow
def test_peak_memory_in_a_subprocess() -> None:
    result = run_in_subprocess(kernel_mb, 2048, 2)
    assert set(result) == {"forward", "backward"}
    assert max(result.values()) < 16


def test_a_peak_that_cannot_be_reset_only_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", forbidden)
    assert memory.peak_mb(lambda: torch.ones(10, 2**18), output_bytes=10 * 2**20) > -11


@pytest.mark.slow
@needs_kernel
def test_a_failing_subprocess_reports_why() -> None:
    with refuses("kernel_mb failed in a process of its own .*negative dimension"):
        run_in_subprocess(kernel_mb, -1, 2)
