"""lm-eval on a keysift model, offline, with a task of three questions (extra [lm], `make test-hub`)."""

import json
import sys
from pathlib import Path

import pytest
import torch

import keysift
from keysift.cli.evaluation.lm import check
from keysift.cli.main import parse
from keysift.cli.verbs.eval import run
from tests.hub.keysift_models import saved_model
from tests.refusals import refuses

QUESTIONS = [("some text", [" and more", " zq"]), ("twelve", [" 12", " 9"]), ("import ", ["os", "zq"])]
TASK = """task: keysift_tiny
dataset_path: json
dataset_kwargs: {{data_files: {data}}}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    rows = [{"question": question, "choices": choices, "answer": 0} for question, choices in QUESTIONS]
    (folder / "tiny.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tiny.yaml").write_text(TASK.format(data=folder / "tiny.jsonl"))
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_local_task_end_to_end(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    model = saved_model(tmp_path / "model")
    out = tmp_path / "results.json"
    run(parse(["eval", "lm", str(model), "--tasks", "keysift_tiny", "--include", str(task), "--out", str(out)]))
    assert "keysift_tiny" in capsys.readouterr().out

    text = keysift.open(model)
    correct = 0
    for question, choices in QUESTIONS:
        start = len(text.tokenizer.encode(question))
        scores = []
        for choice in choices:
            ids = torch.tensor([text.tokenizer.encode(question + choice)])
            log_probabilities = text.model(ids)[0].detach().log_softmax(-1)
            scores.append(
                sum(float(log_probabilities[index - 1, ids[0, index]]) for index in range(start, ids.shape[1]))
            )
        correct += scores[0] > scores[1]
    assert json.loads(out.read_text())["results"]["keysift_tiny"]["acc,none"] == pytest.approx(correct / 3)


def test_missing_tasks_and_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("lm-eval has no task 'piqua'; did you mean 'piqa'"):
        check(["arc", "piqua"], ["arc", "piqa"])
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with refuses(r"keysift eval lm needs lm-eval; install it with pip install 'keysift\[lm\]'"):
        run(parse(["eval", "lm", "somewhere", "--tasks", "piqa"]))
