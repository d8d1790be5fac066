"""The commands `keysift generate` and `keysift presets`."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keysift.cli.main import main
from keysift.cli.verbs import generate as generate_verb
from keysift.data.tokenizers.bytes import Bytes
from keysift.models.generate import generate
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.save import save
from keysift.nn.inference import Inference
from tests.models.checks import perturbed_multiscreen
from tests.models.counts import TABLE
from tests.refusals import refuses, refuses_in_process

KEYSIFT = [sys.executable, "-c", "from keysift.cli.main import main; main()"]
BYTES = MultiscreenConfig(vocab_size=257, depth=1, tiles=2, width=16)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "tiny"
    save(perturbed_multiscreen(BYTES, seed=2), directory)
    Bytes().save(directory)
    return directory


def call(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(list(argv))
    return int(exit_.value.code or 0)


def test_same_seed_gives_the_same_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    expanded = Inference(expand_windows=4)
    model = perturbed_multiscreen(BYTES, seed=2)
    result = generate(model, [[97, 98]], max_new_tokens=8, end_id=256, inference=expanded)
    assert capsys.readouterr().out == bytes(result.rows[0].tokens).decode(errors="replace") + "\n"


def test_an_empty_prompt_starts_from_the_end_token(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", str(run), "--prompt", "", "--max-new-tokens", "3") == 0
    assert "tokens/s" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_the_generated_text(run: Path) -> None:
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


def test_prompt_from_file_or_stdin_and_echo(
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


def assert_one_line_error(text: str, *argv: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", *argv) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) == 1


def test_invalid_prompts_and_settings_give_one_line_errors(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    monkeypatch.setattr("keysift.cli.verbs.generate._MAX_PROMPT_BYTES", 3)
    errors = {
        "give a prompt": (),
        "(- reads standard input)": ("--prompt", "a", "--prompt-file", "b"),
        "cannot be read": ("--prompt-file", str(tmp_path)),
        "longer than 3 bytes": ("--prompt-file", str(tmp_path / "latin")),
        "not UTF-8: character 0 is '\\udcff'": ("--prompt", "\udcff"),
        "at least one character each": ("--prompt", "a", "--stop", ""),
        "an integer must lie within 64 bits, got one of 20 digits": ("--prompt", "a", "--seed", str(2**64)),
        "seed must lie in 0 to 2**64 - 1": ("--prompt", "a", "--seed", "-1"),
        "got -3": ("--prompt", "a", "--seed", "-3"),
        "max_new_tokens must be at least 1": ("--prompt", "a", "--max-new-tokens", "0"),
        "set expand_windows to that number": ("--prompt", "a", "--expand-windows"),
        "1 to 2**53 - 1": ("--prompt", "a", "--expand-windows", str(2**60)),
    }
    for text, flags in errors.items():
        assert_one_line_error(text, str(run), *flags, capsys=capsys)
    monkeypatch.setattr("keysift.cli.verbs.generate._MAX_PROMPT_BYTES", 30)
    assert_one_line_error("byte 3 is 0xe9", str(run), "--prompt-file", str(tmp_path / "latin"), capsys=capsys)


def test_extreme_sampling_settings_are_greedy(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", str(run), "--prompt", "ab", "--temperature", "0", *TWENTY) == 0
    greedy = capsys.readouterr().out
    for flags in (("--temperature", "1e-40"), ("--top-p", "1e-300"), ("--temperature", "5e-324")):
        assert call("generate", str(run), "--prompt", "ab", *flags, *TWENTY) == 0
        assert capsys.readouterr().out == greedy, flags


@pytest.mark.slow
def test_closed_pipe_ends_generation(run: Path) -> None:
    command = [*KEYSIFT, "generate", str(run), "--prompt", "ab", "--max-new-tokens", "1000000", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141


def run_on_terminal(command: list[str], **environment: str) -> bytes:
    """Run a command on a pseudo-terminal and return its output."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command, stdout=follower, stderr=follower, env={**os.environ, **environment}) as process:
        os.close(follower)
        output = b""
        while True:
            try:
                output += os.read(leader, 65536)
            except OSError:  # EIO: the last writer has closed the terminal
                break
    os.close(leader)
    assert process.returncode == 0, output
    return output


HOSTILE = "\x1b]0;title\x07\u202e\x9b é\tx\r"


@pytest.mark.slow
def test_control_characters_are_escaped_on_a_terminal_only(
    run: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    flags = ["generate", str(run), "--prompt", HOSTILE, "--echo", "--max-new-tokens", "3"]
    assert call(*flags) == 0
    assert capsysbinary.readouterr().out.startswith(HOSTILE.encode())
    output = run_on_terminal([*KEYSIFT, *flags])
    assert rb"\x1b]0;title\x07\u202e\x9b" in output
    assert "é\tx\\r".encode() in output
    assert b"\x1b" not in output
    assert b"\x07" not in output


@pytest.mark.slow
def test_ascii_terminal(run: Path) -> None:
    command = [*KEYSIFT, "generate", str(run), "--prompt", "é", "--echo", "--max-new-tokens", "3"]
    assert rb"\xe9" in run_on_terminal(command, PYTHONIOENCODING="ascii")


@pytest.mark.slow
def test_wrong_directory_gives_a_one_line_error(tmp_path: Path) -> None:
    refuses_in_process("config.json is missing", [*KEYSIFT, "generate", str(tmp_path), "--prompt", "a"])


def test_presets_as_json_and_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("presets", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["parameters"] for row in result} == TABLE
    assert call("presets") == 0
    table = capsys.readouterr().out
    assert all(name in table and f"{total:,}" in table for name, total in TABLE.items())
    assert call("presets", "--markdown") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(TABLE)
    assert lines[2].startswith("| multiscreen-psi8 | 8 | 8 | 64 | 4,134,146 |")


def test_prompts_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_prompt(**settings: object) -> str:
        return generate_verb._prompt(generate_verb.Args(run=tmp_path, **settings))  # type: ignore[arg-type]

    latin = tmp_path / "latin"
    latin.write_bytes(b"caf\xe9")
    with refuses("give a prompt: --prompt TEXT or --prompt-file FILE"):
        read_prompt()
    with refuses("the prompt cannot be read"):
        read_prompt(prompt_file=tmp_path)
    with refuses("is not UTF-8 text: byte 3 is 0xe9"):
        read_prompt(prompt_file=latin)
    monkeypatch.setattr(generate_verb, "_MAX_PROMPT_BYTES", 3)
    with refuses("is longer than 3 bytes"):
        read_prompt(prompt_file=latin)
