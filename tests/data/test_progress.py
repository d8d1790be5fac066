"""Progress of long work: plain lines, a bar on a terminal, or nothing."""

import io
from pathlib import Path

import pytest

from keysift.core import progress as live
from keysift.core.terminal import SafeConsole
from keysift.data import build
from keysift.data.progress import Meter
from tests.data.test_shards import source_of


def test_plain_lines_when_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    meter = Meter("reading", 4_000_000, every=0)
    with meter.live:
        meter.advance(1_000_000)
    meter = Meter("reading", None, every=0)
    with meter.live:
        meter.advance(1_000_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("reading: 1.0 of 4.0 MB, ")
    assert lines[1].startswith("reading: 1.0 MB, ")


def test_no_output_with_show_false_or_short_work(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    meter = Meter("reading", 10, show=False, every=0)
    with meter.live:
        meter.advance(1)
    build(source_of(["short"]), "bytes", tmp_path / "c")
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(live, "SafeConsole", lambda **_: SafeConsole(file=terminal, force_terminal=True, width=100))
    meter = Meter("reading words", 100)
    with meter.live:
        meter.advance(50)
    assert "reading words" in terminal.getvalue()
    assert "50/100 bytes" in terminal.getvalue()
