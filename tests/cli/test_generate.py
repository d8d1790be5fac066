"""`keysift generate` and `keysift presets`, as a user runs them."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keysift.cli import generate as generate_verb
from keysift.cli.main import main
from keysift.data.tokenizer import Bytes
from keysift.models.generate import generate
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.save import save
from keysift.nn.inference import Inference
from tests.models.checks import opened
from tests.models.counts import TABLE
from tests.refusals import refuses, refuses_in_process

KEYSIFT = [sys.executable, "-c", "from keysift.cli.main import main; main()"]
BYTES = MultiscreenConfig(vocab_size=257, depth=1, tiles=2, width=16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    save(opened(BYTES, seed=2), directory)
    Bytes().save(directory)
    return directory


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(argv))
    return int(ended.value.code or 0)


def test_the_text_streams_and_a_seed_repeats_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        assert call("generate", str(run), "--prompt", "ab", "--max-new-tokens", "20", "--seed", seed) == 0
        out, err = capsys.readouterr()
        assert "tokens/s" in err
        texts.append(out)
    assert texts[0] == texts[1] != texts[2]


def test_greedy_with_window_expansion(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--max-new-tokens", "8", "--temperature", "0", "--expand-windows", "4")
    assert call("generate", str(run), "--prompt", "ab", *flags) == 0
    far = Inference(expand_windows=4)
    expected = generate(opened(BYTES, seed=2), [[97, 98]], max_new_tokens=8, end_id=256, inference=far).rows[0].tokens
    assert capsys.readouterr().out == bytes(expected).decode(errors="replace") + "\n"


def test_an_empty_prompt_starts_from_the_end_token(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", str(run), "--prompt", "", "--max-new-tokens", "3") == 0
    assert "tokens/s" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_generated(run: Path) -> None:
    command = [*KEYSIFT, "generate", str(run), "--prompt", "ab", "--max-new-tokens", "1000000", "--temperature", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(5)
        os.kill(process.pid, signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (first + rest).endswith(b"\n")
    assert b"interrupted after" in err
    assert b"Traceback" not in err


TWENTY = ("--max-new-tokens", "20")


def test_a_prompt_from_a_file_from_standard_input_and_echoed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("generate", str(run), "--prompt", "né\n", *TWENTY) == 0
    expected = capsys.readouterr().out
    (tmp_path / "prompt.txt").write_text("né\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("né\n".encode())))
    for file in (str(tmp_path / "prompt.txt"), "-"):
        assert call("generate", str(run), "--prompt-file", file, *TWENTY) == 0
        assert capsys.readouterr().out == expected
    assert call("generate", str(run), "--prompt", "né\n", "--echo", *TWENTY) == 0
    assert capsys.readouterr().out == "né\n" + expected


def refused(text: str, *argv: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", *argv) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) == 1


def test_what_cannot_be_a_prompt_or_a_setting_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    monkeypatch.setattr("keysift.cli.generate._LONGEST", 3)
    told = {
        "say what to continue": (),
        "where - reads standard input": ("--prompt", "a", "--prompt-file", "b"),
        "cannot be read": ("--prompt-file", str(tmp_path)),
        "longer than 3 bytes": ("--prompt-file", str(tmp_path / "latin")),
        "not UTF-8: character 0 is '\\udcff'": ("--prompt", "\udcff"),
        "at least one character each": ("--prompt", "a", "--stop", ""),
        "seed must lie in 0 to 2**64 - 1": ("--prompt", "a", "--seed", str(2**64)),
        "got -3": ("--prompt", "a", "--seed", "-3"),
        "max_new_tokens must be at least 1": ("--prompt", "a", "--max-new-tokens", "0"),
        "give expand_windows that number": ("--prompt", "a", "--expand-windows"),
        "1 to 2**53 - 1": ("--prompt", "a", "--expand-windows", str(10**30)),
    }
    for text, flags in told.items():
        refused(text, str(run), *flags, capsys=capsys)
    monkeypatch.setattr("keysift.cli.generate._LONGEST", 30)
    refused("byte 3 is 0xe9", str(run), "--prompt-file", str(tmp_path / "latin"), capsys=capsys)


def test_extremes_have_an_answer(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", str(run), "--prompt", "ab", "--temperature", "0", *TWENTY) == 0
    likely = capsys.readouterr().out
    for flags in (("--temperature", "1e-40"), ("--top-p", "1e-300"), ("--temperature", "5e-324")):
        assert call("generate", str(run), "--prompt", "ab", *flags, *TWENTY) == 0
        assert capsys.readouterr().out == likely, flags


@pytest.mark.slow
def test_a_reader_that_has_enough_ends_it(run: Path) -> None:
    command = [*KEYSIFT, "generate", str(run), "--prompt", "ab", "--max-new-tokens", "1000000", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def on_terminal(command: list[str], **environment: str) -> bytes:
    """What a command writes to a terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command, stdout=follower, stderr=follower, env={**os.environ, **environment}) as process:
        os.close(follower)
        written = b""
        while True:
            try:
                written += os.read(leader, 65536)
            except OSError:  # how a terminal says that its last writer left
                break
    os.close(leader)
    assert process.returncode == 0, written
    return written


HOSTILE = "\x1b]0;title\x07\u202e\x9b é\tx\r"


@pytest.mark.slow
def test_a_terminal_is_shown_harmless_text_and_a_pipe_gets_the_bytes(
    run: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    flags = ["generate", str(run), "--prompt", HOSTILE, "--echo", "--max-new-tokens", "3"]
    assert call(*flags) == 0
    assert capsysbinary.readouterr().out.startswith(HOSTILE.encode())
    seen = on_terminal([*KEYSIFT, *flags])
    assert rb"\x1b]0;title\x07\u202e\x9b" in seen
    assert "é\tx\\r".encode() in seen
    assert b"\x1b" not in seen
    assert b"\x07" not in seen


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii(run: Path) -> None:
    command = [*KEYSIFT, "generate", str(run), "--prompt", "é", "--echo", "--max-new-tokens", "3"]
    assert rb"\xe9" in on_terminal(command, PYTHONIOENCODING="ascii")


@pytest.mark.slow
def test_a_wrong_directory_is_one_line(tmp_path: Path) -> None:
    refuses_in_process("config.json is missing", [*KEYSIFT, "generate", str(tmp_path), "--prompt", "a"])


def test_presets_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("presets", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["parameters"] for row in found} == TABLE
    assert call("presets") == 0
    table = capsys.readouterr().out
    assert all(name in table and f"{total:,}" in table for name, total in TABLE.items())
    assert call("presets", "--markdown") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(TABLE)
    assert lines[2].startswith("| multiscreen-psi8 | 8 | 8 | 64 | 4,134,146 |")


def test_prompts_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt(**given: object) -> str:
        return generate_verb._prompt(generate_verb.Args(run=tmp_path, **given))  # type: ignore[arg-type]

    latin = tmp_path / "latin"
    latin.write_bytes(b"caf\xe9")
    with refuses("say what to continue: --prompt TEXT, or --prompt-file FILE"):
        prompt()
    with refuses("the prompt cannot be read"):
        prompt(prompt_file=tmp_path)
    with refuses("is not UTF-8 text: byte 3 is 0xe9"):
        prompt(prompt_file=latin)
    monkeypatch.setattr(generate_verb, "_LONGEST", 3)
    with refuses("is longer than 3 bytes"):
        prompt(prompt_file=latin)
