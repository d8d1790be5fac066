"""Recall in long texts (`keysift demo --million`): answers, counted keys, extrapolated times, refusals."""

import json
from dataclasses import replace

import pytest
import torch

from keysift.cli.demos import million
from keysift.cli.main import _main
from keysift.cli.terminal.long_recall_chart import extrapolated, long_chart, long_summary
from keysift.cli.verbs import demo
from keysift.core.config import from_dict
from keysift.data.tasks.recall import Recall
from keysift.evaluate import long_recall
from keysift.evaluate.measured_model import open_measured_model
from keysift.kernels.cpu import library
from keysift.models.save import save
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.inference import Inference
from keysift.records.long_recall import LongCell, LongRecall
from tests.evaluate.planted import retriever
from tests.refusals import refuses

TASK = Recall(letters=8, values=4, length=16, queries=4)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A Multiscreen that answers every question, and a Transformer with random weights."""
    folder = tmp_path_factory.mktemp("models")
    config = TransformerConfig(vocab_size=TASK.tokenizer.vocab_size, context=16, depth=1, heads=2, width=16)
    drawn = Transformer(config, generator=torch.Generator().manual_seed(0))
    for name, model in (("multiscreen", retriever(TASK)), ("transformer", drawn)):
        save(model, folder / name)
        TASK.tokenizer.save(folder / name)
    return str(folder / "multiscreen"), str(folder / "transformer")


def test_the_demo(models: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(million, "TRANSFORMER_LENGTH", 128)
    argv = ["demo", "--million", "--models", *models, "--lengths", "64", "128", "6000", "--questions", "5"]
    assert _main([*argv, "--json"]) == 0
    ours, theirs = (from_dict(LongRecall, record) for record in json.loads(capsys.readouterr().out))
    assert [(c.length, c.correct, c.total) for c in ours.cells] == [(64, 8, 8), (128, 8, 8), (6000, 8, 8)]
    assert theirs.lengths == [64, 128]
    assert {cell.setting for cell in theirs.cells} == {"as trained", "RoPE scaled", "RoPE ntk", "RoPE yarn"}
    assert "--lengths 64 128 --questions 5 --json" in theirs.made.command
    if library.instruction_set() is not None:  # without the compiled step nothing is counted
        last = ours.cells[-1]
        # 5,992 tokens before the questions, and the question, which accepts the needle and itself.
        assert (last.in_window, last.accepted) == (5993, 2)
        # The last token of the text accepts a fifth of the keys, after which keys are scanned.
        assert last.read == 5993
        assert theirs.cells[0].read is None
    assert _main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("multiscreen ###" in line and "100%" in line for line in lines) == 3
    (guess,) = (line for line in lines if "not measured" in line)
    assert guess.split()[:2] == ["6,000", "transformer"]


def test_a_question_sees_no_other(models: tuple[str, str]) -> None:
    """The question is cropped: the cache is as before, and the same question has the same answer."""
    measured = open_measured_model(models[0])
    tokens_T = torch.from_numpy(TASK.row(0, length=64)[0])
    with torch.inference_mode():
        cache = long_recall.read_text(measured.model, tokens_T[:60], 64, Inference(expand_windows=16))
        assert cache.lengths == [60]
        for at in (60, 61, 62, 63):
            alone = measured.model(
                torch.cat((tokens_T[:60], tokens_T[at : at + 1]))[None], inference=Inference(expand_windows=16)
            )
            torch.testing.assert_close(measured.model(tokens_T[None, at : at + 1], cache=cache)[0, 0], alone[0, -1])
            cache.crop(1)


def test_an_interrupted_demo_prints_what_it_measured(
    models: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_lengths: list[int] = []

    def interrupt(*arguments: object) -> LongCell:
        if measured_lengths:
            raise KeyboardInterrupt
        measured_lengths.append(64)
        return cell(*arguments)

    cell = long_recall._cell
    monkeypatch.setattr(long_recall, "_cell", interrupt)
    argv = ["demo", "--million", "--models", models[0], "--lengths", "64", "128", "--questions", "1"]
    assert _main(argv) == 130
    captured = capsys.readouterr()
    assert captured.out.startswith("64 tokens, windows above 256 expanded: 4 of 4 correct")
    assert "interrupted; measured of" in captured.err
    assert _main(argv) == 130
    assert "interrupted; nothing was measured" in capsys.readouterr().err


def test_times_are_extrapolated_by_their_growth(models: tuple[str, str]) -> None:
    record = long_recall.measure_long_recall(open_measured_model(models[0]), lengths=[64, 128], questions=1)
    slow = replace(record, cells=tuple(replace(c, read_seconds=(c.length / 64) ** 2) for c in record.cells))
    assert extrapolated(slow, "read_seconds", 512) == pytest.approx(64.0)
    longer = replace(slow, cells=(*slow.cells, replace(slow.cells[-1], length=512)))
    chart = long_chart([longer, slow])
    assert next(line for line in chart.splitlines() if "~" in line).split()[-4:-2] == ["~64", "s"]
    assert max(map(len, chart.splitlines())) <= 80
    assert long_summary([longer, slow])[-1].startswith("~ is extrapolated")
    assert len(long_summary([longer])) == 1


def test_what_the_demo_refuses(models: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with refuses("--million trains nothing and writes nothing; leave out"):
        demo.run(demo.Args(million=True, steps=1))
    with refuses("--models, --lengths and --questions apply to keysift demo --million only"):
        demo.run(demo.Args(lengths=(64,)))
    with refuses("there is no model at nowhere; run the demo in a clone"):
        demo.run(demo.Args(million=True, models=("nowhere",)))
    measured = open_measured_model(models[0])
    with refuses("recall needs at least 1 question and texts of at least 17 tokens, got 0 and 64"):
        long_recall.measure_long_recall(measured, lengths=[64], questions=0)
    unknown = replace(measured, subject=replace(measured.subject, trained_length=None))
    with refuses("does not state its training length; use a run"):
        long_recall.measure_long_recall(unknown, lengths=[64])
    monkeypatch.setattr("keysift.core.memory.available", lambda: 1000)
    with refuses("a text of 64 tokens needs about .* use shorter --lengths"):
        long_recall.measure_long_recall(measured, lengths=[64])
