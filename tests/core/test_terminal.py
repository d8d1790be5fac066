"""Untrusted text on a terminal: control characters are escaped, markup is not interpreted, scripts are kept."""

import io
import re
import sys

import pytest
from rich.table import Table

from keysift.core.progress import ProgressDisplay
from keysift.core.terminal import SafeConsole, SafeTextColumn, escape_line, escape_text, styled

HOSTILE = "\x1b]0;t\x07\x1b[31m\r\x08\x9b2J\u202eabc\u2066\u2028\x7f\ud800[/red][abc]:smile:"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")


def test_control_characters_are_escaped() -> None:
    escaped = escape_line(HOSTILE + "\n\t")
    assert not RAW.search(escaped)
    assert escaped.startswith(r"\x1b]0;t\x07\x1b[31m\r\x08\x9b2J\u202eabc\u2066\u2028\x7f\ud800[/red][abc]")
    assert escaped.endswith(r"\n\t")
    assert escape_text("a\tb\n\x1b") == "a\tb\n\\x1b"


def test_text_of_any_script_is_unchanged() -> None:
    joined = ("👩\N{ZERO WIDTH JOINER}🔬", "می\N{ZERO WIDTH NON-JOINER}خواهم")
    for text in ("naïve — 日本語 עברית العربية हिन्दी", r"C:\x1b", *joined):
        assert escape_line(text) == escape_text(text) == text


def print_to_string(*printed: object, **settings: object) -> str:
    out = io.StringIO()
    SafeConsole(file=out, width=200, **settings).print(*printed)
    return out.getvalue()


def test_every_printed_string_is_escaped() -> None:
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    for printed in (HOSTILE, table, styled(HOSTILE, (HOSTILE, "bold"))):
        text = print_to_string(printed)
        assert not RAW.search(text)
        assert "[/red][abc]:smile:" in text
    assert "\x1b[1m" in print_to_string(styled(("x", "bold")), force_terminal=True), "our own styles still work"


def test_progress_lines_and_bars_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    ProgressDisplay(show=True).print(HOSTILE)
    assert "[/red][abc]" in out.getvalue()
    bars = io.StringIO()
    live = ProgressDisplay(SafeTextColumn("{task.description} {task.fields[news]}"), show=True)
    from rich.progress import Progress

    progress = Progress(
        SafeTextColumn("{task.description} {task.fields[news]}"), console=SafeConsole(file=bars, width=200)
    )
    progress.add_task(HOSTILE, news=HOSTILE)
    progress.refresh()
    progress.console.print(progress.get_renderable())
    assert bars.getvalue().count("[/red][abc]") >= 2
    assert live.bars is None
    for text in (out.getvalue(), bars.getvalue()):
        assert not RAW.search(text)
