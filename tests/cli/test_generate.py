"""`keysift generate` and `keysift presets`, as a user runs them."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keysift.cli.main import main
from keysift.cli.stream import TextStream
from keysift.data.tokenizer import Bytes
from keysift.models.generate import generate
from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.save import save
from tests.models.checks import opened
from tests.models.counts import TABLE
from tests.refusals import refuses_in_process

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
    flags = ("--max-new-tokens", "8", "--temperature", "0", "--expand-windows-beyond", "4")
    assert call("generate", str(run), "--prompt", "ab", *flags) == 0
    expected = generate(opened(BYTES, seed=2), [[97, 98]], max_tokens=8, end_id=256).rows[0].tokens
    assert capsys.readouterr().out == bytes(expected).decode(errors="replace") + "\n"


def test_an_empty_prompt_starts_from_the_end_token(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("generate", str(run), "--prompt", "", "--max-new-tokens", "3") == 0
    assert "tokens/s" in capsys.readouterr().err


def test_ctrl_c_keeps_what_was_generated(run: Path) -> None:
    command = [*KEYSIFT, "generate", str(run), "--prompt", "ab", "--max-new-tokens", "1000000", "--temperature", "0"]
    # A shell's background job ignores SIGINT and its children with it: what is tested is a user's terminal.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [command[0], command[1], listening + command[2], *command[3:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(5)
        os.kill(process.pid, signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert (first + rest).endswith(b"\n")
    assert b"interrupted after" in err
    assert b"Traceback" not in err


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


def decode(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


def streamed(text: str, stop: tuple[str, ...]) -> list[str]:
    """What is on the terminal after each byte, and at the end."""
    out = io.StringIO()
    stream = TextStream(decode, stop, out)
    seen = []
    for byte in text.encode():
        stream.add(byte)
        seen.append(out.getvalue())
    stream.finish()
    return [*seen, out.getvalue()]


def test_no_half_characters_reach_the_terminal() -> None:
    assert streamed("aé!", ()) == ["a", "a", "aé", "aé!", "aé!\n"]
    assert streamed("€", ()) == ["", "", "€", "€\n"]


def test_bytes_that_are_no_text_do_not_hold_the_stream_back() -> None:
    out = io.StringIO()
    stream = TextStream(decode, (), out)
    for _ in range(5):
        stream.add(0xC3)
    assert out.getvalue() == "\ufffd" * 4


def test_the_beginning_of_a_stop_text_is_held_back() -> None:
    assert streamed("one END", ("END", "xx"))[-2:] == ["one ", "one \n"]
    assert streamed("one EN.", ("END",)) == ["o", "on", "one", "one ", "one ", "one ", "one EN.", "one EN.\n"]
    assert streamed("one EN", ("END",))[-1] == "one EN\n"
