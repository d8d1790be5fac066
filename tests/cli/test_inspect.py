"""`keysift inspect`, as a user runs it: both kinds of model, and one clear line before any work for what cannot be."""

import io
import json
import re
import sys
from pathlib import Path

import pytest

from keysift.cli.compare import Args, run
from keysift.cli.inspect import read_texts
from keysift.cli.main import main
from keysift.core import memory
from keysift.data.tokenizer import Bytes
from keysift.hub.subject import open_subject
from keysift.lens.examine import inspect
from keysift.lens.record import from_json
from keysift.models.save import save
from tests.hub.models import saved
from tests.lens.subjects import LINE, multiscreen
from tests.refusals import refuses

WORDS = "the red ball was gone and she ran home fast , the blue sky was red ."


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ours") / "tiny"
    save(multiscreen().model, directory)
    Bytes().save(directory)
    return directory


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("theirs") / "llama")


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return int(ended.value.code or 0)


def test_both_kinds_as_json(ours: Path, theirs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(WORDS)
    for model, text, kind, heads in ((ours, LINE, "keysift", 6), (theirs, str(file), "huggingface", 8)):
        assert call("inspect", str(model), "--text", text, "--json") == 0
        record = from_json(json.loads(capsys.readouterr().out))
        assert (record.model.kind, len(record.heads)) == (kind, heads)
        assert record.texts[0].name == (text if kind == "huggingface" else "text 1")
        assert all(head.values["effective_keys"] for head in record.heads)
    assert record.model.family == "llama"


def test_a_table_for_people(ours: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE))
    assert call("inspect", str(ours), "--text", "-", "--tokens", "20") == 0
    out = capsys.readouterr().out
    assert re.search(r"^ +1 +2 ", out, re.MULTILINE)
    assert "standard input: 20 tokens" in out


def test_what_cannot_be_is_refused_before_any_work(
    ours: Path, theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refuses("text 1 is empty"):
        read_texts((" \n",))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfa")
    with refuses("bad.txt is not UTF-8 text"):
        read_texts((str(tmp_path / "bad.txt"),))
    with refuses("holds no config.json"):
        open_subject(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    with refuses("is a BertForMaskedLM, which does not read from left to right"):
        open_subject(str(tmp_path))
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LMHeadModel"], "model_type": "t5", "is_encoder_decoder": true}'
    )
    with refuses("is a t5 model, which does not read from left to right"):
        open_subject(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ')
    with refuses("config.json is not JSON"):
        open_subject(str(tmp_path))
    subject = open_subject(str(theirs))
    with refuses("text 1 has 90 tokens, llama reads at most 64; shorten it, or pass --tokens 64"):
        inspect(subject, ["the red ball " * 30])
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", _missing_library)
    with refuses(r"model.gguf cannot be read with what is installed \(no gguf\); for GGUF files pip install"):
        open_subject(str(tmp_path / "model.gguf"))
    monkeypatch.undo()
    monkeypatch.setattr(memory, "available", lambda: 10_000)
    with refuses("in fp32 needs about 0.0 GB"):
        open_subject(str(theirs))
    with refuses("17 tokens at a time needs about"):
        inspect(subject, [WORDS])
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refuses(r"Hugging Face models need the extra \[hub\]; install it with pip install 'keysift\[hub\]'"):
        open_subject(str(theirs))


def _missing_library(*_: object, **__: object) -> None:
    raise ImportError("no gguf")


def _no_network(*_: object) -> None:
    raise OSError("no network in tests")


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keysift.hub.subject.socket.getaddrinfo", _no_network)
    with refuses(
        "nobody/nothing is neither a keysift model, nor a local Hugging Face directory, nor a name that can be"
    ):
        open_subject("nobody/nothing")
    assert call("inspect", "nobody/nothing", "--text", LINE) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("keysift: nobody/nothing is neither")
    assert captured.err.count("\n") == 1


def test_report(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    assert call("inspect", str(ours), "--text", LINE, "-o", str(report), "--swap", "relu") == 0
    assert "With relu on the same scores" in capsys.readouterr().out.replace("\n", " ")
    assert "Attention in" in report.read_text()


def test_compare(ours: Path, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    assert call("compare", str(ours), str(theirs), "--text", WORDS, "-o", str(report)) == 0
    out = capsys.readouterr().out
    assert "tiny" in out
    assert "llama" in out
    moved = next(line for line in out.splitlines() if "moved by leaving" in line).split()
    assert float(moved[-2]) == 0
    assert float(moved[-1]) > 0
    assert "Side by side" in report.read_text()
    assert call("compare", str(ours), str(theirs), "--text", WORDS, "--json") == 0
    assert [from_json(one).model.name for one in json.loads(capsys.readouterr().out)] == ["tiny", "llama"]
    with refuses("compare needs two models or more, got 1; for one use keysift inspect"):
        run(Args(models=(str(ours),), text=(WORDS,)))
