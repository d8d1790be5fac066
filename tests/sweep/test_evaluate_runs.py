"""The records of a report name commands that make the same measurement."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from keysift.cli.evaluation import flags
from keysift.cli.main import parse
from keysift.data.tokenizers.bytes import Bytes
from keysift.evaluate.measured_model import MeasuredModel
from keysift.records.evaluation import Subject
from keysift.runs.summary import summary
from keysift.sweep import evaluate_runs
from keysift.sweep.evaluate_runs import cheap_evaluations
from tests.runs.handwritten import falling, write_run

ROPE = {"arch": "transformer", "psi": None, "depth": 1, "heads": 1, "width": 8, "position": "rope"}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Arguments of each measurement, instead of measuring."""
    calls: dict[str, dict[str, Any]] = {}

    class Stop(Exception):
        pass

    def record(name: str) -> Any:
        def measure(*args: Any, **options: Any) -> None:
            calls[name] = options
            raise Stop

        return measure

    for name in ("measure_loss", "measure_positions", "measure_retrieval", "measure_windows", "relevance_maps"):
        monkeypatch.setattr(evaluate_runs, name, record(name))
    monkeypatch.setattr(evaluate_runs, "KeysiftModel", lambda *args: None)
    calls["stop"] = {"type": Stop}
    return calls


@pytest.mark.parametrize(
    ("data", "model"), [("stdlib", {}), ("stdlib", ROPE), ("recall:letters=8", ROPE), ("recall:letters=8", {})]
)
def test_commands_are_those_of_the_command_line(
    data: str, model: dict[str, Any], tmp_path: Path, calls: dict[str, dict[str, Any]]
) -> None:
    path = tmp_path / "a run"
    write_run(path, falling(1.0), data=data, context=64, **model)
    run = summary(path)
    subject = Subject(name=str(path), kind=run.arch, parameters=1, trained_length=64, step=1)
    measured = MeasuredModel(None, Bytes(), subject, data)  # type: ignore[arg-type]
    for evaluation in cheap_evaluations(run):
        if evaluation.name == "relevance" and data != "stdlib":
            continue  # reading a row of recall needs its tokenizer
        with pytest.raises(calls["stop"]["type"]):
            evaluation.measure(measured)
    factors = (4.0, 16.0) if data == "stdlib" else (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    beyond = flags.Beyond(expand_windows=not model, rope_factors=factors if model else ())
    name = str(path)
    expected: dict[str, Any] = {
        "measure_loss": flags.Loss(models=(name,), text=data, tokens=16_384),
        "measure_positions": flags.Positions(model=name, text=data, documents=4, beyond=beyond),
        "measure_retrieval": flags.Retrieval(model=name, task="recall", beyond=beyond),
        "measure_windows": flags.Windows(model=name, text=data),
        "relevance_maps": flags.Relevance(model=name, text=data),
    }
    del calls["stop"]
    for measurement, options in calls.items():
        command = shlex.split(options["command"])
        assert command[0] == "keysift"
        do = parse(command[1:]).do
        assert do == expected[measurement]
        for option in ("tokens", "documents", "depths", "instances", "seed"):
            if option in options and hasattr(do, option):
                assert getattr(do, option) == options[option]
