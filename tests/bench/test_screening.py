"""keysift bench screening and show, at small sizes."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from keysift.bench import peak_memory as memory
from keysift.bench import screening, screening_device, timing, training_step
from keysift.bench.collector import Collector
from keysift.bench.screening import FULL, QUICK, Sizes
from keysift.bench.tables import markdown
from keysift.cli.main import _main
from keysift.cli.verbs import bench
from keysift.core.config import save
from keysift.core.errors import DataError, DisagreementError
from keysift.kernels.attend import attend
from keysift.kernels.cpu import library
from keysift.runs import machine
from keysift.verify import agreement
from keysift.web.shared.benchmark_plot import plot
from tests.bench.results import RESULT
from tests.machine import needs_kernel
from tests.refusals import refuses, refuses_in_process

KEYSIFT = str(Path(sys.executable).parent / "keysift")
TINY = Sizes(
    dense_tokens=48,
    dense_tiles=2,
    tokens=64,
    tiles=2,
    rounds=2,
    curve=(32,),
    growth=(32, 64),
    memory_tokens=256,
    memory_tiles=2,
    psi=2,
    train_tokens=16,
    train_batch=2,
    compiled=False,
)


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "QUICK", TINY)
    monkeypatch.setattr(timing, "MAX_REPEATS", 1)
    # A process of its own takes seconds to start; test_timing.py starts one.
    monkeypatch.setattr(
        screening, "run_in_subprocess", lambda function, *arguments, environment=None: function(*arguments)
    )
    monkeypatch.setattr(machine, "READ_MEGABYTES", 4)


@needs_kernel
@pytest.mark.usefixtures("_tiny")
def test_json_has_machine_rows_and_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "screening.json"
    assert _main(["bench", "screening", "--quick", "--json", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result == json.loads(out.read_text())
    assert out.with_suffix(".svg").read_text().startswith("<svg")
    assert result["command"] == "keysift bench screening --quick"
    assert result["machine"]["instruction_set"] == library.instruction_set()
    assert len(result["targets"]) >= 9
    for target in result["targets"]:
        assert {"name", "value", "target", "met"} <= set(target)
        assert target["met"] is None, "a target measured at another size is neither met nor missed"
    steps = {row["step"] for row in result["rows"]}
    assert {"forward", "backward", "forward + backward"} <= steps
    for row in result["rows"]:
        assert row["seconds"]["low"] <= row["seconds"]["median"] <= row["seconds"]["high"]
    assert "checking the kernel against the definition" in printed.err
    assert _main(["bench", "show", str(out)]) == 0
    assert "other size" in capsys.readouterr().out


def test_targets_apply_at_full_sizes_only() -> None:
    """Targets apply at the sizes of FULL, and --quick uses none of them."""
    assert (FULL.dense_tokens, FULL.dense_tiles, FULL.tokens, FULL.tiles) == (4096, 16, 16_384, 8)
    assert (FULL.growth[0], FULL.growth[-1], FULL.memory_tokens, FULL.memory_tiles) == (16_384, 131_072, 131_072, 16)
    assert (FULL.psi, FULL.train_tokens, FULL.train_batch, FULL.compiled) == (8, 1024, 8, True)
    for names in (("dense_tokens",), ("tokens", "tiles"), ("growth",), ("memory_tokens",), ("train_tokens",)):
        assert not screening.full(QUICK, *names)
    assert screening.full(FULL, "dense_tokens", "tokens")


def test_a_wrong_kernel_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "unavailable", lambda: None)
    backends = {"screening_cpu": 1.001}
    monkeypatch.setattr(
        agreement,
        "attend",
        lambda *a, backend, **o: attend(*a, backend="dense", **o) * backends.get(backend, 1.0),
    )
    assert _main(["bench", "screening", "--quick"]) == 2
    printed = capsys.readouterr()
    assert "keysift: the output of screening on screening_cpu is off by" in printed.err
    assert printed.out == "", "nothing was timed"


def test_a_missing_kernel_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "LIBRARY", Path("nowhere"))
    assert _main(["bench", "screening"]) == 2
    assert "keysift: there is nothing to time: the compiled kernel was not built" in capsys.readouterr().err


def test_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    save(RESULT, path)
    assert _main(["bench", "show", str(path), "--markdown"]) == 0
    assert capsys.readouterr().out.strip() == markdown(RESULT).strip()
    assert _main(["bench", "show", str(path), "--svg"]) == 0
    assert capsys.readouterr().out.strip() == plot(RESULT).strip()
    save(replace(RESULT, rows=RESULT.rows[:1]), path)
    with refuses("has nothing measured at two lengths, so there is no curve to plot", DataError):
        bench.run(bench.Args(do=bench.Show(result=path, svg=True)))
    refuses_in_process(
        "keysift: no result at .*nothing.json", [KEYSIFT, "bench", "show", str(tmp_path / "nothing.json")]
    )


def test_show_a_missing_file(tmp_path: Path) -> None:
    with refuses("no result at .*nothing.json; write one with keysift bench NAME --out", DataError):
        bench.run(bench.Args(do=bench.Show(result=tmp_path / "nothing.json")))


def test_notes_name_what_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STATUS", Path("nowhere"))
    monkeypatch.setattr(library, "instruction_sets", list)
    result = Collector(RESULT.machine, log=lambda line: None)
    screening.extra_memory(result, FULL)
    screening.variants(result, FULL)
    assert (result.rows, result.targets) == ([], [])
    about = [note.split(":")[0] for note in result.notes]
    assert about == ["extra memory", "variant avx512", "variant avx2", "variant plain"]


class OneTile(nn.Module):
    """A minimal language model for a training step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(training_step.VOCABULARY, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)[:, None]
        return attend("screening", x, x, x)[:, 0] @ self.embed.weight.T


@needs_kernel
def test_kernel_and_dense_training_steps_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters change alike with the kernel on the whole batch and with the definition in parts."""
    torch.manual_seed(0)
    model = OneTile()
    text = torch.randint(training_step.VOCABULARY, (4, 9))
    moved = []
    monkeypatch.setattr(training_step.copy, "deepcopy", lambda model: moved.append(OneTile()) or moved[-1])
    for backend, at_once in (("screening_cpu", 4), ("dense", 2)):
        torch.manual_seed(0)
        training_step.step(model, text, backend=backend, at_once=at_once)()
    for ours, theirs in zip(moved[0].parameters(), moved[1].parameters(), strict=True):
        assert not torch.equal(ours, next(model.parameters()))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@needs_kernel
def test_training_rows_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_step, "multiscreen", lambda psi: OneTile())
    run = Collector(RESULT.machine, log=lambda line: None)
    screening.training(run, TINY)
    assert [row.against for row in run.rows] == ["dense, eager"]
    assert [(target.target, target.met) for target in run.targets] == [(15.0, None)]
    assert "compiled was left out" in run.notes[0]
    times = {"kernel": [1.0, 2.0], "dense, eager": [16.0, 32.0], "dense, compiled": [3.0, 6.0]}
    monkeypatch.setattr(training_step, "time_steps", lambda **_: times)
    full = Collector(RESULT.machine, log=lambda line: None)
    screening.training(full, FULL)
    assert [(target.value, target.met) for target in full.targets] == [(3.0, False), (16.0, True)]


@pytest.mark.slow
@pytest.mark.usefixtures("_tiny")
def test_compares_a_device_with_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU in place of a GPU: agreement first, then every step; what does not fit in memory is a note."""

    def too_large(*arguments: object, is_causal: bool) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(screening_device, "DTYPES", (torch.float32, torch.bfloat16))
    measure = partial(screening_device.measure, torch.device("cpu"), (32,), 1, 1.0, command="bench", log=print)
    result = measure()
    assert [(row.what, row.step) for row in result.rows] == [
        (shape.what, step) for shape in screening_device.PAPER for step in ("forward", "forward + backward", "decode")
    ]
    assert result.machine.accelerator == "cpu"
    assert sum("agrees with the definition, in value and every gradient" in note for note in result.notes) == 4
    monkeypatch.setattr(screening_device, "DTYPES", ())
    monkeypatch.setattr(screening_device, "scaled_dot_product_attention", too_large)
    result = measure()
    assert not result.rows
    assert "window 256, T = 32, decode: out of memory" in result.notes


def test_a_device_that_disagrees_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "SLACK", 0.0)
    monkeypatch.setattr(agreement, "ROUNDING", dict.fromkeys(agreement.ROUNDING, 0.0))
    with refuses("is allowed in torch.float32 on cpu; please report this in an issue", DisagreementError):
        screening_device.measure(torch.device("cpu"), (32,), 1, 1.0, command="bench", log=print)
