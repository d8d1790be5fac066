"""`keysift inspect` and `keysift compare` on keysift and transformers models, and their errors."""

import io
import json
import math
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from keysift.cli.flags.subject import check_subject
from keysift.cli.flags.texts import describe_text, read_texts
from keysift.cli.main import main
from keysift.cli.verbs.compare import Args, run
from keysift.cli.verbs.inspect import Args as InspectArgs
from keysift.cli.verbs.inspect import run as inspect_run
from keysift.core import memory
from keysift.data.tokenizers.bytes import Bytes
from keysift.hub.lens_model import open_model
from keysift.lens.inspection import inspect
from keysift.models.save import save
from keysift.records.lens import Text, from_json
from tests.hub.transformers_models import save_model
from tests.lens.models import LINE, multiscreen
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
    return save_model(tmp_path_factory.mktemp("theirs") / "llama")


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return int(ended.value.code or 0)


def test_json_of_keysift_and_transformers_models(
    ours: Path, theirs: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(WORDS)
    for model, text, kind, heads in ((ours, LINE, "keysift", 6), (theirs, str(file), "huggingface", 8)):
        assert call("inspect", str(model), "--text", text, "--json") == 0
        record = from_json(json.loads(capsys.readouterr().out))
        assert (record.model.kind, len(record.heads)) == (kind, heads)
        assert record.texts[0].name == (text if kind == "huggingface" else "text 1")
        assert all(head.values["effective_keys"] for head in record.heads)
    assert record.model.family == "llama"


def test_table_output(ours: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LINE.encode())))
    assert call("inspect", str(ours), "--text", "-", "--tokens", "20", "--details") == 0
    out = capsys.readouterr().out
    assert re.search(r"^ +1 +2 ", out, re.MULTILINE)
    assert "standard input: 20 tokens" in out


def test_invalid_input_is_refused_before_any_computation(
    ours: Path, theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refuses("text 1 is empty"):
        read_texts((" \n",))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xfa")
    with refuses("bad.txt is not UTF-8 text"):
        read_texts((str(tmp_path / "bad.txt"),))
    with refuses("has no config.json"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ["BertForMaskedLM"], "model_type": "bert"}')
    with refuses("is a BertForMaskedLM, which is not a causal language model"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text(
        '{"architectures": ["LMHeadModel"], "model_type": "t5", "is_encoder_decoder": true}'
    )
    with refuses("is a t5 model, which is not a causal language model"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"architectures": ')
    with refuses("config.json is not JSON"):
        open_model(str(tmp_path))
    model = open_model(str(theirs))
    with refuses("text 1 has 90 tokens, llama reads at most 64; shorten it, or pass --tokens 64"):
        inspect(model, ["the red ball " * 30])
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", _missing_library)
    with refuses(r"model.gguf cannot be read with what is installed \(no gguf\); for GGUF files pip install"):
        open_model(str(tmp_path / "model.gguf"))
    monkeypatch.undo()
    monkeypatch.setattr(memory, "available", lambda: 10_000)
    with refuses(r"in fp32 needs about [\d.]+ [kM]B, 10.0 kB are free"):
        open_model(str(theirs))
    with refuses("17 tokens at a time needs about"):
        inspect(model, [WORDS])
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refuses(r"Hugging Face models need the extra \[hub\]; install it with pip install 'keysift\[hub\]'"):
        open_model(str(theirs))


def _missing_library(*_: object, **__: object) -> None:
    raise ImportError("no gguf")


def _no_network(*_: object) -> None:
    raise OSError("no network in tests")


@pytest.mark.parametrize("where", ["./nofile", "no/such/folder", "/nofile", "nofile.gguf"])
def test_a_path_that_is_not_there_is_refused_without_the_hub(where: str) -> None:
    with refuses(f"{where} is neither a keysift model, .* nor a name that can be downloaded; correct the path"):
        check_subject(where)
    check_subject("gpt2")
    check_subject("HuggingFaceTB/SmolLM2-135M")


def test_a_file_is_not_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.safetensors").touch()
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("model.safetensors", "pipe", "pipe.gguf"):
        with refuses(f"{name} is not a model: expected a directory or a .gguf file; name the model's directory"):
            check_subject(name)
    (tmp_path / "model.gguf").touch()
    check_subject("model.gguf")
    check_subject(".")


def test_an_unknown_model_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keysift.hub.lens_model.socket.getaddrinfo", _no_network)
    with refuses(
        "nobody/nothing is neither a keysift model, nor a local Hugging Face directory, nor a name that can be"
    ):
        open_model("nobody/nothing")
    assert call("inspect", "nobody/nothing", "--text", LINE) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("keysift: nobody/nothing is neither")
    assert captured.err.count("\n") == 1


def test_a_text_that_names_no_file_is_refused(ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("once upon a time")
    (tmp_path / "notes" / "b.md").write_text("there was\n\na cat")
    for missing in ("nosuch.txt", "nosuch/file", "./nosuch", "~/nosuch", "no such file.txt", "notes/*.py"):
        with refuses(f"'{re.escape(missing)}' looks like a path, but no such file or folder exists; .*--text -"):
            read_texts((missing,))
    os.mkfifo(tmp_path / "pipe")
    with refuses("no file matches 'pipe'"):
        read_texts(("pipe",))
    with refuses("folder empty holds no text"):
        read_texts(("empty",))
    (tmp_path / "nothing.txt").touch()
    with refuses("nothing.txt is empty; give a text"):
        read_texts(("nothing.txt",))
    both = {"notes/a.txt": "once upon a time", "notes/b.md": "there was\n\na cat"}
    assert read_texts(("notes",)) == both
    assert read_texts(("notes/*",)) == both
    for text in ("once", "Is it so?", "once upon a time. The end.", "either/or or\nneither.txt", "x" * 5000, "a *b* c"):
        assert read_texts((text,)) == {"text 1": text}
    for verb in ("inspect", "compare"):
        assert call(verb, str(ours), *([str(ours)] if verb == "compare" else []), "--text", "nosuch.txt") == 2


def test_a_text_without_scored_tokens_has_no_loss() -> None:
    assert describe_text(Text(name="a", tokens=3, loss=math.nan)) == "a: 3 tokens, no token has a loss"
    assert describe_text(Text(name="a", tokens=3, loss=1.5)) == "a: 3 tokens, loss 1.500 nats per token"


def test_the_texts_that_were_read_are_shown(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(f"{LINE}\n{LINE}")
    for verb in ("inspect", "compare"):
        models = [str(ours)] * (2 if verb == "compare" else 1)
        assert call(verb, *models, "--text", "a.txt", LINE, "--tokens", "20") == 0
        out = capsys.readouterr().out
        for name in ("a.txt", "text 2"):
            line = next(line for line in out.splitlines() if line.startswith(f"{name}: 20 tokens"))
            assert '"the cat sat on the m..."' in line, "the part that was read"


def test_report(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    assert call("inspect", str(ours), "--text", LINE, "-o", str(report), "--swap", "relu") == 0
    out = capsys.readouterr().out
    assert "With relu on the same scores" in out.replace("\n", " ")
    assert f"{report}: {report.stat().st_size / 1e6:.2f} MB, made in " in out
    assert re.search(r", made in \d+\.\d s$", out.rstrip())
    assert "Attention in" in report.read_text()


def test_watch(ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "first"
    for step in (100, 200):
        shutil.copytree(ours, run / "checkpoints" / f"step-{step:08d}")
        (run / "checkpoints" / f"step-{step:08d}" / "manifest.json").write_text("{}")
    (run / "train.json").write_text("{}")
    report = tmp_path / "report.html"
    assert call("inspect", str(run), "--text", LINE, "-o", str(report), "--watch", "--sample", "0") == 0
    lines = capsys.readouterr().out
    assert "first, step 100: loss " in lines
    assert "first, step 200: loss " in lines
    assert "<title>" in report.read_text()
    with refuses("--watch writes a page to the file of -o and nothing else, none was given; use -o report.html"):
        inspect_run(InspectArgs(model=str(run), text=(LINE,), watch=True))
    with refuses("--watch writes a page to the file of -o and nothing else, got --json; use -o report.html"):
        inspect_run(InspectArgs(model=str(run), text=(LINE,), watch=True, out=report, json=True))


def test_compare(ours: Path, theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.html"
    assert call("compare", str(ours), str(theirs), "--text", WORDS, "-o", str(report)) == 0
    out = capsys.readouterr().out
    assert "tiny" in out
    assert "llama" in out
    moved = next(line for line in out.splitlines() if line.startswith("change without the brightest key")).split()
    assert float(moved[-2]) == 0
    assert float(moved[-1]) > 0
    rows = {line.rsplit(maxsplit=2)[0].strip(): line.split()[-2:] for line in out.splitlines()}
    assert "loss, bits per byte" in rows
    assert "loss, nats per token (different tokenizers: not comparable)" in rows
    assert "Models side by side" in report.read_text()
    assert call("compare", str(ours), str(theirs), "--text", WORDS, "--json") == 0
    assert [from_json(item).model.name for item in json.loads(capsys.readouterr().out)] == ["tiny", "llama"]
    with refuses("compare needs two models or more, got 1; for one use keysift inspect"):
        run(Args(models=(str(ours),), text=(WORDS,)))
