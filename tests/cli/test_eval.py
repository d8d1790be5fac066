"""`keysift eval` on a small saved model: records that add up, files that can be read, grids that resume."""

import csv
import json
import math
from pathlib import Path

import pytest

from keysift.cli.main import _main
from keysift.core.config import from_dict
from keysift.data.tokenizer import Bytes
from keysift.evaluate.measured import LossByPosition, Retrieval, TextLoss, Windows
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.save import save
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.web import figures
from tests.models.checks import opened
from tests.refusals import refuses

TINY = MultiscreenConfig(vocab_size=257, depth=1, tiles=2, width=16, context=64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    save(opened(TINY, seed=2), directory)
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
    said = evaluate(capsys, "loss", model, "--text", text, "--tokens", 300, "--json", "--out", tmp_path)
    record = from_dict(TextLoss, json.loads(said))
    assert (record.tokens, record.bytes, record.context, record.stride) == (299, 299, 64, 32)
    assert record.bits_per_byte == pytest.approx(record.nats / math.log(2))
    with (tmp_path / "loss.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(float(row["nats"]) for row in rows) / 299 == pytest.approx(record.nats)
    assert bytes(int(row["id"]) for row in rows[:4]) == b"ll h"


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
    assert [(cell.length, cell.depth, cell.asked) for cell in record.cells] == [(250, 0.2, 2), (250, 0.8, 2)]
    # What was finished is not computed again: a cell changed by hand, and half a line, are what a second call finds.
    kept = tmp_path / "passkey-cells.jsonl"
    first, second = kept.read_text().splitlines()
    kept.write_text(first.replace('"right": 0', '"right": 2') + "\n" + second[:30])
    again = json.loads(evaluate(capsys, *arguments, "--out", tmp_path, "--json"))
    assert [cell["right"] for cell in again["cells"]] == [2, 0]


def test_windows(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = evaluate(capsys, "windows", model, "--text", text, "--tokens", 50, "--csv", "--out", tmp_path)
    assert said.splitlines()[0] == "layer,head,window,acceptance,accepted,nothing,mass"
    assert len(said.splitlines()) == 3
    record = from_dict(Windows, json.loads((tmp_path / "windows.json").read_text()))
    assert record.tokens == 50
    assert (tmp_path / "windows.png").is_file()


def test_a_model_without_windows_gets_no_figure(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(Transformer(TransformerConfig(vocab_size=257, depth=1, heads=2, width=16)), tmp_path / "plain")
    Bytes().save(tmp_path / "plain")
    evaluate(capsys, "windows", tmp_path / "plain", "--text", text, "--tokens", 20, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "windows.png").exists()
    record = from_dict(Windows, json.loads((tmp_path / "out" / "windows.json").read_text()))
    with refuses("has no windows to draw"):
        figures.write(figures.windows(record), tmp_path / "never")


def test_an_untrained_preset(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.loads(evaluate(capsys, "loss", "multiscreen-psi8", "--text", text, "--tokens", 40, "--json"))
    assert said["subject"]["step"] == 0
    assert said["subject"]["trained_length"] == 4096


def test_refusals(model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*arguments: object) -> None:
        from keysift.cli.main import parse

        eval_args = parse(["eval", *map(str, arguments)])
        __import__("keysift.cli.eval", fromlist=["run"]).run(eval_args)

    with refuses("neither a directory with a model nor a preset; did you mean 'multiscreen-psi8'"):
        call("loss", "multiscreen-psi9")
    with refuses("at least 2 tokens are needed"):
        call("loss", model, "--text", text, "--tokens", 1)
    with refuses("holds fewer than 2 tokens"):
        (tmp_path / "empty.txt").write_text("")
        call("loss", model, "--text", tmp_path / "empty.txt")
    with refuses("lengths must be at least 1 token, got none"):
        call("retrieval", model, "--lengths")
    with refuses("needs about .* GiB for its keys and values"):
        call("retrieval", model, "--lengths", 10**12)
    with refuses("figures need matplotlib"):
        monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
        call("windows", model, "--text", text, "--tokens", 20, "--out", tmp_path)
