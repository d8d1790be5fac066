"""Control characters in file names and fields are escaped on a terminal."""

import json
import re
from pathlib import Path

import pytest

from keysift.cli.main import main
from keysift.cli.verbs import runs
from tests.refusals import refuses

NAME = "a\x1b[31m\x07[/red][abc]\u202e"
ESCAPED = r"a\x1b[31m\x07[/red][abc]\u202e"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def output(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> str:
    """Standard output and error of a command. Asserts that they contain no raw control character."""
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
    listed = output(capsys, "runs", tmp_path)
    assert listed.count(ESCAPED) >= 2
    assert rf"{ESCAPED}\nsecond" in listed
    assert len(listed.splitlines()) == 2, "a name with a newline is one row"
    (run / "train.json").write_text("{}")
    assert ESCAPED in output(capsys, "runs", tmp_path)
    assert "no runs in" in output(capsys, "runs", tmp_path / "nothing" / NAME)


def test_a_corpus_and_its_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = tmp_path / f"{NAME}.txt"
    text.parent.mkdir()
    text.write_text("some words and more words\n\n" * 40)
    assert ESCAPED in output(capsys, "data", "build", text, "--out", tmp_path / NAME, "--tokenizer", "bpe:260")
    assert ESCAPED in output(capsys, "data", "show", tmp_path / NAME)
    settings = tmp_path / NAME / "tokenizer_config.json"
    settings.write_text(json.dumps({"eos_token": "\x1b]0;x\x07"}))
    assert r"\x1b]0;x\x07" in output(
        capsys, "data", "build", text, "--out", tmp_path / "b", "--tokenizer", tmp_path / NAME
    )


def test_errors_that_quote_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text(json.dumps({NAME: 1}) + "\n")
    assert ESCAPED in output(capsys, "data", "build", lines, "--out", tmp_path / "c")
    assert ESCAPED in output(capsys, "generate", tmp_path / NAME, "--prompt", "a")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "keysift_multiscreen", NAME: 1}))
    assert r"\x1b[31m" in output(capsys, "generate", tmp_path, "--prompt", "a")
    toml = tmp_path / "x.toml"
    toml.write_text('data = "\\u001b[31m"\nwrong = 1\n')
    output(capsys, "train", "--config", toml)
    toml.write_text('data = "\\u001b[31m"\n')
    assert r"\x1b[31m" in output(capsys, "train", "--config", toml, "--help")


def test_json_output_is_not_escaped_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "\x1b\x7f\x85é.txt"
    text.write_text("some words and more words\n\n" * 40)
    with pytest.raises(SystemExit):
        main(["data", "build", str(text), "--out", str(tmp_path / "c"), "--json"])
    values = json.loads(capsys.readouterr().out)
    assert values["source"] == str(text)


def test_runs_refuses_a_hugging_face_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    with refuses("is a Hugging Face model .llama.; import it with keysift import"):
        runs.run(runs.Args(folder=tmp_path))
