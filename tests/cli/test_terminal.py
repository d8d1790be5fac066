"""What a person sees at a terminal of 80 columns."""

import re
from pathlib import Path

import pytest

from keysift.bench.record import Result
from keysift.cli.main import main, parse
from keysift.core.config import load
from tests.fuzz.sandbox import RAW, Ended, run
from tests.refusals import refuses

ROOT = Path(__file__).parent.parent.parent
RESULTS, CHECKPOINT = ROOT / "docs" / "results", ROOT / "checkpoints" / "one-hop-multiscreen"
COLOUR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


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
    with refuses("no verb is called 'wieght'; did you mean 'weigh'?"):
        parse(["wieght"])
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


def table(ended: Ended) -> list[str]:
    """What it is of, and its lines: none is too long, and no cell is cut."""
    assert ended.code == 0
    # Progress is taken back by going up and clearing a line.
    lines = [COLOUR.sub("", line).rstrip() for line in ended.said.decode().split("\x1b[2K")[-1].splitlines()]
    assert all(len(line) <= 80 and not re.search(r"…|\\u2026", line) for line in lines[1:])
    return lines


def test_latency_fits(tmp_path: Path) -> None:
    lines = table(at_terminal("eval", "latency", str(RESULTS / "models.json"), cwd=tmp_path))
    rows = load(Result, RESULTS / "models.json").rows
    assert lines[0].endswith("; medians, speedup against Transformer")
    for row in (row for row in rows if row.against in ("", "Transformer")):
        step = {"training step": "train"}.get(row.step, row.step)
        name = row.what if len(row.what) < 40 else row.what[:30]
        cache = "" if row.cache_bytes is None else " [0-9.]+ [MG]B"
        row_of = re.compile(rf"{re.escape(name)} +{step} +{row.tokens} +[0-9.]+ m?s( +[0-9.,]+x)? *{cache}")
        assert any(map(row_of.fullmatch, lines)), row
    assert len(lines) - 2 <= 2 * len(rows), "names on two lines at most"
    assert any("(against dense definition" in line for line in lines), (
        "one that is compared with something else says so"
    )


def test_heads_can_be_told_apart(tmp_path: Path) -> None:
    words = " ".join(f"{chr(65 + n % 26)}={n % 16}" for n in range(200))
    argv = ("inspect", str(CHECKPOINT), "--text", words, "--diagnostics-only")
    lines = table(at_terminal(*argv, cwd=tmp_path))
    assert lines[1].split()[:4] == ["layer", "head", "kind", "keys"]
    heads = [line.split()[:2] for line in lines[2:] if re.match(r" +[0-9]+ +[0-9]+ ", line)]
    assert heads == [[str(layer), str(head)] for layer in range(2) for head in range(4)]
