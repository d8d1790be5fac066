"""What a person sees at a terminal of 80 columns."""

from pathlib import Path

import pytest

from keysift.cli.main import main
from tests.fuzz.sandbox import RAW, Ended, run


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)


def at_terminal(*argv: str, cwd: Path) -> Ended:
    def command() -> int:
        main(list(argv))
        return 0

    return run(command, cwd, timeout=120)


@pytest.mark.parametrize(
    ("argv", "meant"),
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
def test_a_mistyped_flag_is_told_plainly(argv: tuple[str, ...], meant: bytes, tmp_path: Path) -> None:
    ended = at_terminal(*argv, cwd=tmp_path)
    assert ended.code == 2
    assert meant in ended.said
    assert b"x1b" not in ended.said, "colours of the parser, spelled out"
    assert not RAW.search(ended.said)


def test_a_mistyped_verb_is_one_line_with_the_nearest(tmp_path: Path) -> None:
    ended = at_terminal("wieght", "--scores", "1,2", cwd=tmp_path)
    assert ended.code == 2
    said = ended.said.decode().replace("\r\n", "\n")
    assert said.startswith("keysift: no verb is called 'wieght'; did you mean 'weigh'? verbs: mechanisms, weigh, ")
    assert said.count("\n") == 1


def test_words_of_a_stranger_stay_spelled_out(tmp_path: Path) -> None:
    for argv in (("\x1b[31mweigh",), ("weigh", "--score\x1b[31m", "1"), ("weigh", "--help\x1b]0;x\x07")):
        ended = at_terminal(*argv, cwd=tmp_path)
        assert rb"\x1b" in ended.said
        assert not RAW.search(ended.said)


def test_help_has_colours_at_a_terminal(tmp_path: Path) -> None:
    ended = at_terminal("weigh", "--help", cwd=tmp_path)
    assert ended.code == 0
    assert b"\x1b[" in ended.said
    assert ended.said.count(b"usage:") == 1, "it was told twice"
