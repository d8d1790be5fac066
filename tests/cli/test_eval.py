"""`keysift eval` on a small saved model: records, output files and resumed grids."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from keysift.cli.evaluation import flags as eval_flags
from keysift.cli.flags.command_line import command_line
from keysift.cli.main import _main
from keysift.core.config import from_dict
from keysift.data.tasks.recall import Recall
from keysift.data.tokenizers.bytes import Bytes
from keysift.evaluate import windows as eval_windows
from keysift.evaluate.measured_model import open_measured_model
from keysift.evaluate.texts import first_tokens
from keysift.kernels.cpu import library
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.save import save
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.decode_step import through_modules
from keysift.nn.tap import trace
from keysift.records.evaluation import LossByPosition, RelevanceMaps, Retrieval, TextLoss, Windows, summarize_maps
from keysift.web.figures import evaluation as figures
from tests.evaluate.planted import retriever
from tests.models.checks import perturbed_multiscreen
from tests.refusals import refuses

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TINY = MultiscreenConfig(vocab_size=257, depth=1, tiles=2, width=16, context=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    save(perturbed_multiscreen(TINY, seed=2), directory)
    Bytes().save(directory)
    return directory


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "long.txt"
    file.write_text("All happy families are alike. " * 40)
    return file


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert _main(["eval", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_loss(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = evaluate(capsys, "loss", model, "--text", text, "--tokens", 300, "--json", "--out", tmp_path)
    record = from_dict(TextLoss, json.loads(output))
    assert (record.tokens, record.bytes, record.context, record.stride) == (299, 299, 64, 32)
    assert record.bits_per_byte == pytest.approx(record.nats / math.log(2))
    with (tmp_path / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(float(row["nats"]) for row in rows) / 299 == pytest.approx(record.nats)
    assert bytes(int(row["id"]) for row in rows[:4]) == b"ll h"


def test_loss_of_several_models(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--text", text, "--tokens", 100)
    alone = [json.loads(evaluate(capsys, "loss", one, *options, "--json")) for one in (model, "multiscreen-psi8")]
    output = evaluate(capsys, "loss", model, "multiscreen-psi8", *options, "--json", "--out", tmp_path)
    together = json.loads(output)
    assert [record["subject"]["name"] for record in together] == [record["subject"]["name"] for record in alone]
    assert together[0]["nats"] == alone[0]["nats"]
    assert together[0]["made"]["command"] == alone[0]["made"]["command"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-tiny", "2-multiscreen-psi8"]
    assert (tmp_path / "1-tiny" / "loss.csv").is_file()
    lines = evaluate(capsys, "loss", model, "multiscreen-psi8", *options).splitlines()
    assert lines[0] == "2 models"
    assert lines[1].split()[:2] == ["model", "tokens"]
    assert f"{together[0]['nats']:.4f}" in lines[2]
    rows = list(csv.DictReader(evaluate(capsys, "loss", model, model, *options, "--csv").splitlines()))
    assert len(rows) == 2 * 99


def test_positions(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("positions", model, "--text", text, "--length", 512, "--expand-windows", "--out", tmp_path)
    assert "windows expanded" in evaluate(capsys, *arguments)
    record = from_dict(LossByPosition, json.loads((tmp_path / "positions.json").read_text()))
    assert sorted({point.context for point in record.points}) == [16, 32, 64, 128, 256, 512]
    assert {point.setting for point in record.points} == {"as trained", "windows expanded"}
    assert (tmp_path / "positions.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "positions.svg").read_text()


def test_retrieval_resumes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("retrieval", model, "--task", "passkey", "--lengths", 250, "--depths", 0.2, 0.8, "--instances", 2)
    evaluate(capsys, *arguments, "--out", tmp_path)
    record = from_dict(Retrieval, json.loads((tmp_path / "passkey.json").read_text()))
    assert [(cell.length, cell.depth, cell.total) for cell in record.cells] == [(250, 0.2, 2), (250, 0.8, 2)]
    # Finished cells are not computed again: the second call keeps an edited cell and recomputes a truncated line.
    log = tmp_path / "passkey-cells.jsonl"
    first, second = log.read_text().splitlines()
    log.write_text(first.replace('"correct": 0', '"correct": 2') + "\n" + second[:30])
    resumed = json.loads(evaluate(capsys, *arguments, "--out", tmp_path, "--json"))
    assert [cell["correct"] for cell in resumed["cells"]] == [2, 0]


def test_hand_written_model_recalls_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Recall()
    save(retriever(task), tmp_path)
    task.tokenizer.save(tmp_path)
    arguments = ("retrieval", tmp_path, "--task", "recall", "--depths", 0, 1, "--instances", 2)
    record = json.loads(evaluate(capsys, *arguments, "--json"))
    assert sorted({cell["length"] for cell in record["cells"]}) == [64 * 2**n for n in range(7)]
    assert {cell["correct"] for cell in record["cells"]} == {2}
    maps = json.loads(evaluate(capsys, "relevance", tmp_path, "--text", "recall", "--tokens", 20, "--json"))
    assert maps["tokens"][-1].strip().endswith("?"), "a row of the task with its queries at the end"


def test_windows(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = evaluate(capsys, "windows", model, "--text", text, "--tokens", 50, "--csv", "--out", tmp_path)
    assert output.splitlines()[0] == "layer,head,window,acceptance,accepted,nothing,mass"
    assert len(output.splitlines()) == 3
    record = from_dict(Windows, json.loads((tmp_path / "windows.json").read_text()))
    assert record.tokens == 50
    assert (tmp_path / "windows.png").is_file()


def test_windows_counts_the_keys_of_decoded_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Recall(letters=8, values=4, length=16, queries=4)
    save(retriever(task), tmp_path)
    task.tokenizer.save(tmp_path)
    arguments = ("windows", tmp_path, "--text", "recall", "--tokens", 32, "--expand-windows", "--lengths", 6000, 100)
    if library.instruction_set() is None:
        with refuses("keys are counted where the compiled step decodes a screening model .* leave out --lengths"):
            eval_windows.measure_windows(open_measured_model(str(tmp_path)), "recall", tokens=32, lengths=[100])
        return
    record = from_dict(Windows, json.loads(evaluate(capsys, *arguments, "--json")))
    short, long = record.counts
    assert (short.length, short.in_window, short.read) == (100, 108.5, 108.5)  # the mean of 101 to 116
    assert (long.length, long.in_window) == (6000, 6008.5)
    # The hand-written tile accepts the tokens of the same letter: too many for a search, so that all keys are read.
    ids = first_tokens("recall", task.tokenizer, 6016).ids
    letter = np.where(ids < 32, ids // 4, ids - 32)
    same = [np.count_nonzero(letter[: at + 1] == letter[at]) for at in range(6000, 6016)]
    assert (long.accepted, long.read) == (np.mean(same), long.in_window)
    assert "6,000: accepted / read" in evaluate(capsys, *arguments)
    assert evaluate(capsys, *arguments, "--csv").splitlines()[0] == "layer,head,length,in_window,read,accepted"
    measured = open_measured_model(str(tmp_path))
    with refuses("--lengths must be at least 1 token each, got 0"):
        eval_windows.measure_windows(measured, "recall", tokens=32, lengths=[0])
    short_text = tmp_path / "short.txt"
    short_text.write_text("A=1 B=2 " * 20)
    with refuses(f"{short_text} has 40 tokens, --lengths needs 116; give a longer text"):
        eval_windows.measure_windows(measured, str(short_text), tokens=32, lengths=[100])
    with through_modules(), refuses("keys are counted where the compiled step decodes a screening model"):
        eval_windows.measure_windows(measured, "recall", tokens=32, lengths=[100])


def test_a_model_without_windows_gets_no_figure(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Transformer(TransformerConfig(vocab_size=257, depth=1, heads=2, width=16)), tmp_path / "plain")
    Bytes().save(tmp_path / "plain")
    evaluate(capsys, "windows", tmp_path / "plain", "--text", text, "--tokens", 20, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "windows.png").exists()
    record = from_dict(Windows, json.loads((tmp_path / "out" / "windows.json").read_text()))
    with refuses("has no learned windows to draw"):
        figures.write(figures.windows(record), tmp_path / "never")


def test_relevance(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The CSV file contains the non-zero weights. The record has the model's weights in the playground's format."""
    evaluate(capsys, "relevance", model, "--text", text, "--tokens", 12, "--out", tmp_path)
    record = from_dict(RelevanceMaps, json.loads((tmp_path / "relevance.json").read_text()))
    assert (record.format, "".join(record.tokens)) == ("keysift-maps", "All happy fa")
    weights = [head.weights for layer in record.layers for head in layer.heads]
    with (tmp_path / "relevance.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(w != 0 for head in weights for row in head for w in row) > 12
    assert [head.accepted for head in summarize_maps(record)] == pytest.approx(
        [sum(row["head"] == name for row in rows) / 78 for name in ("layers.0.heads.0", "layers.0.heads.1")]
    )
    tiny = perturbed_multiscreen(TINY, seed=2).eval()
    with torch.no_grad(), trace(tiny, "layers.*.relevance") as traced:
        tiny(torch.tensor([list(b"All happy fa")]))
    torch.testing.assert_close(torch.tensor(weights), next(iter(traced.values()))[0], rtol=1e-4, atol=1e-6)
    assert (tmp_path / "relevance.png").read_bytes().startswith(b"\x89PNG")


def test_a_record_contains_its_command(model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command lists non-default settings only, without output flags, so equal measurements have equal commands."""
    record = json.loads(evaluate(capsys, "windows", model, "--text", text, "--tokens", 20, "--json"))
    assert record["made"]["command"] == f"keysift eval windows {model} --text {text} --tokens 20"
    assert record["made"]["machine"]["cores"] >= 1
    retrieval = eval_flags.Retrieval(
        model="a b", lengths=(8, 16), beyond=eval_flags.Beyond(expand_windows=True, rope_factors=(1.0, 2.5))
    )
    expected = "keysift eval retrieval 'a b' --lengths 8 16 --expand-windows --rope-factors 1 2.5"
    assert command_line("eval retrieval", retrieval) == expected


def test_an_untrained_preset(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(evaluate(capsys, "loss", "multiscreen-psi8", "--text", text, "--tokens", 40, "--json"))
    assert record["subject"]["step"] == 0
    assert record["subject"]["trained_length"] == 4096


def test_refusals(model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*arguments: object) -> None:
        from keysift.cli.main import parse

        eval_args = parse(["eval", *map(str, arguments)])
        __import__("keysift.cli.verbs.eval", fromlist=["run"]).run(eval_args)

    with refuses("neither a directory with a model nor a preset; did you mean 'multiscreen-psi8'"):
        call("loss", "multiscreen-psi9")
    with refuses("eval loss needs a model; give a run, a checkpoint, a saved model or a preset"):
        call("loss", "--text", text)
    with refuses("a text needs at least 2 tokens"):
        call("loss", model, "--text", text, "--tokens", 1)
    with refuses("has fewer than 2 tokens"):
        (tmp_path / "empty.txt").write_text("")
        call("loss", model, "--text", tmp_path / "empty.txt")
    with refuses("lengths must be at least 1 token, got 0"):
        call("retrieval", model, "--lengths", 0)
    with refuses("a context of 1,000,000,000,000 tokens needs about .* GB, .* use shorter lengths"):
        call("retrieval", model, "--lengths", 10**12, "--expand-windows")
    with refuses("a map of 10,000,000 x 10,000,000 tokens for every head needs about .*; read fewer with --tokens"):
        call("windows", model, "--tokens", 10**7)
    with refuses("recall needs a model trained on it, but this model uses the tokenizer bytes"):
        call("retrieval", model, "--task", "recall")
    with refuses("no runs in .*empty; make some with keysift sweep"):
        call("stability", tmp_path / "empty")
    with refuses("figures need matplotlib"):
        monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
        call("windows", model, "--text", text, "--tokens", 20, "--out", tmp_path)
