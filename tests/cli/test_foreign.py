"""Names and fields of other people's files on a terminal: spelled out, neither obeyed nor lost, nor a crash."""

import json
import re
from pathlib import Path

import pytest

from keysift.cli import runs
from keysift.cli.main import main
from tests.refusals import refuses

NAME = "a\x1b[31m\x07[/red][abc]\u202e"
SPELLED = r"a\x1b[31m\x07[/red][abc]\u202e"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def said(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    """Both streams of a command, which hold no raw control character."""
    with pytest.raises(SystemExit):
        main([str(word) for word in argv])
    out, err = capsys.readouterr()
    assert not RAW.search(out + err)
    return out + err


def test_a_list_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    run = tmp_path / f"{NAME}\nsecond"
    run.mkdir(parents=True)
    config = {"arch": NAME, "data": NAME, "steps": 3}
    (run / "train.json").write_text(json.dumps({"config": config, "parameters": 5}))
    (run / "metrics.jsonl").write_text("")
    listed = said(capsys, "runs", tmp_path)
    assert listed.count(SPELLED) >= 2
    assert rf"{SPELLED}\nsecond" in listed
    assert len(listed.splitlines()) == 2, "a name with a newline is one row"
    (run / "train.json").write_text("{}")
    assert SPELLED in said(capsys, "runs", tmp_path)
    assert "no runs in" in said(capsys, "runs", tmp_path / "nothing" / NAME)


def test_a_corpus_and_its_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = tmp_path / f"{NAME}.txt"
    text.parent.mkdir()
    text.write_text("some words and more words\n\n" * 40)
    assert SPELLED in said(capsys, "data", "build", text, "--out", tmp_path / NAME, "--tokenizer", "bpe:260")
    assert SPELLED in said(capsys, "data", "show", tmp_path / NAME)
    settings = tmp_path / NAME / "tokenizer_config.json"
    settings.write_text(json.dumps({"eos_token": "\x1b]0;x\x07"}))
    assert r"\x1b]0;x\x07" in said(
        capsys, "data", "build", text, "--out", tmp_path / "b", "--tokenizer", tmp_path / NAME
    )


def test_errors_that_quote_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text(json.dumps({NAME: 1}) + "\n")
    assert SPELLED in said(capsys, "data", "build", lines, "--out", tmp_path / "c")
    assert SPELLED in said(capsys, "generate", tmp_path / NAME, "--prompt", "a")
    (tmp_path / "config.json").write_text(json.dumps({"model": "multiscreen", NAME: 1}))
    assert r"\x1b[31m" in said(capsys, "generate", tmp_path, "--prompt", "a")
    toml = tmp_path / "x.toml"
    toml.write_text('data = "\\u001b[31m"\nwrong = 1\n')
    said(capsys, "train", "--config", toml)
    toml.write_text('data = "\\u001b[31m"\n')
    assert r"\x1b[31m" in said(capsys, "train", "--config", toml, "--help")


def test_json_stays_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "\x1b\x7f\x85é.txt"
    text.write_text("some words and more words\n\n" * 40)
    with pytest.raises(SystemExit):
        main(["data", "build", str(text), "--out", str(tmp_path / "c"), "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["source"] == str(text)


def test_a_model_of_hugging_face_is_no_list_of_runs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    with refuses("is a Hugging Face model .llama.; bring it here with keysift import"):
        runs.run(runs.Args(folder=tmp_path))
