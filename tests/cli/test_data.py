import json
import sys
from pathlib import Path

import pytest

from keysift.cli.main import main
from tests.refusals import refuses_in_process


def run(*argv: str | Path) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["data", *map(str, argv)])
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_build_and_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "a.txt"
    text.write_text("".join(f"some words {number:04d}\n\n" for number in range(900)))
    assert run("build", text, "--out", tmp_path / "c", "--tokenizer", "bpe:258") == 0
    assert "bpe:258" in capsys.readouterr().out
    assert run("build", text, "--out", tmp_path / "c", "--tokenizer", "bpe:258", "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["text_bytes"] == 17 * 900
    assert run("show", tmp_path / "c", "--val-fraction", "0.3", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["hash"] == values["hash"]
    assert shown["train_tokens"] + shown["val_tokens"] == values["tokens"]
    assert shown["train_documents"] + shown["val_documents"] == values["documents"]
    assert run("show", tmp_path / "c", "--val-fraction", "0", "--json") == 0
    assert "val_tokens" not in json.loads(capsys.readouterr().out)


def test_a_corrupt_shard_is_one_line_on_stderr(tmp_path: Path) -> None:
    keysift = [sys.executable, "-c", "from keysift.cli.main import main; main()", "data"]
    assert run("build", "abcdigits:documents=20", "--out", tmp_path / "c") == 0
    shard = tmp_path / "c" / "shard-00000.bin"
    shard.write_bytes(shard.read_bytes()[::-1])
    refuses_in_process("shard-00000.bin is corrupt", [*keysift, "show", str(tmp_path / "c")])
    refuses_in_process("no file matches 'nowhere'", [*keysift, "build", "nowhere", "--out", str(tmp_path / "d")])
