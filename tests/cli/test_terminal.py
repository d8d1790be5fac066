"""Output on a terminal of 80 columns."""

import re
from pathlib import Path

import pytest

from keysift.cli.main import main, parse
from tests.fuzz.sandbox import RAW, Result, run
from tests.refusals import refuses

ROOT = Path(__file__).parent.parent.parent
RESULTS, CHECKPOINT = ROOT / "docs" / "results", ROOT / "checkpoints" / "one-hop-multiscreen"
COLOUR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def at_terminal(*argv: str, cwd: Path) -> Result:
    def command() -> int:
        main(list(argv))
        return 0

    return run(command, cwd, timeout=120)


@pytest.mark.parametrize(
    ("argv", "suggestion"),
    [
        (("weigh", "--score", "1"), b"--scores"),
        (("bench", "models", "--quik"), b"--quick"),
        (("train", "--stpes", "3"), b"--steps"),
        (("train", "--lr", "x"), b"Error parsing --lr"),
        (("wieght", "--help"), b"did you mean 'weigh'?"),
        ((), b"mechanisms, weigh"),
    ],
    ids=str,
)
def test_a_mistyped_flag_gets_a_suggestion(argv: tuple[str, ...], suggestion: bytes, tmp_path: Path) -> None:
    result = at_terminal(*argv, cwd=tmp_path)
    assert result.code == 2
    assert suggestion in result.output
    assert b"x1b" not in result.output, "colours of the parser are printed as escape sequences"
    assert not RAW.search(result.output)


def test_a_mistyped_verb_gets_a_suggestion(tmp_path: Path) -> None:
    with refuses("there is no verb 'wieght'; did you mean 'weigh'?"):
        parse(["wieght"])
    result = at_terminal("wieght", "--scores", "1,2", cwd=tmp_path)
    assert result.code == 2
    text = result.output.decode().replace("\r\n", "\n")
    assert text.startswith("keysift: there is no verb 'wieght'; did you mean 'weigh'? verbs: mechanisms, weigh, ")
    assert text.count("\n") == 1


def test_control_characters_in_arguments_are_escaped(tmp_path: Path) -> None:
    for argv in (("\x1b[31mweigh",), ("weigh", "--score\x1b[31m", "1"), ("weigh", "--help\x1b]0;x\x07")):
        result = at_terminal(*argv, cwd=tmp_path)
        assert rb"\x1b" in result.output
        assert not RAW.search(result.output)


def test_help_has_colours_at_a_terminal(tmp_path: Path) -> None:
    result = at_terminal("weigh", "--help", cwd=tmp_path)
    assert result.code == 0
    assert b"\x1b[" in result.output
    assert result.output.count(b"usage:") == 1, "the usage is printed twice"


def table(result: Result) -> list[str]:
    """Title and lines of a table. Asserts that no line is too long and no cell is truncated."""
    assert result.code == 0
    # Progress bars are erased with the escape sequence that clears a line.
    lines = [COLOUR.sub("", line).rstrip() for line in result.output.decode().split("\x1b[2K")[-1].splitlines()]
    assert all(len(line) <= 80 and not re.search(r"…|\\u2026", line) for line in lines[1:])
    return lines


def test_head_table_lists_layer_and_head(tmp_path: Path) -> None:
    words = " ".join(f"{chr(65 + n % 26)}={n % 16}" for n in range(200))
    argv = ("inspect", str(CHECKPOINT), "--text", words, "--details", "--diagnostics-only")
    lines = table(at_terminal(*argv, cwd=tmp_path))
    assert any(line.split()[:4] == ["layer", "head", "kind", "keys"] for line in lines)
    heads = [line.split()[:2] for line in lines if re.match(r" +[0-9]+ +[0-9]+ ", line)]
    assert heads == [[str(layer), str(head)] for layer in range(2) for head in range(4)]
