"""The door for foreign text: what commands a terminal is spelled out, brackets stay brackets, writing stays writing."""

import io
import re
import sys

import pytest
from rich.table import Table

from keysift.core.live import Live
from keysift.core.shown import Door, Words, shown, shown_text, styled

HOSTILE = "\x1b]0;t\x07\x1b[31m\r\x08\x9b2J\u202eabc\u2066\u2028\x7f\ud800[/red][abc]:smile:"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")


def test_controls_are_spelled_out_and_nothing_is_lost() -> None:
    spelled = shown(HOSTILE + "\n\t")
    assert not RAW.search(spelled)
    assert spelled.startswith(r"\x1b]0;t\x07\x1b[31m\r\x08\x9b2J\u202eabc\u2066\u2028\x7f\ud800[/red][abc]")
    assert spelled.endswith(r"\n\t")
    assert shown_text("a\tb\n\x1b") == "a\tb\n\\x1b"


def test_writing_stays_as_it_is() -> None:
    joined = ("👩\N{ZERO WIDTH JOINER}🔬", "می\N{ZERO WIDTH NON-JOINER}خواهم")
    for text in ("naïve — 日本語 עברית العربية हिन्दी", r"C:\x1b", *joined):
        assert shown(text) == shown_text(text) == text


def written(*printed: object, **settings: object) -> str:
    out = io.StringIO()
    Door(file=out, width=200, **settings).print(*printed)
    return out.getvalue()


def test_every_string_that_reaches_the_console_goes_through_the_door() -> None:
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    for printed in (HOSTILE, table, styled(HOSTILE, (HOSTILE, "bold"))):
        seen = written(printed)
        assert not RAW.search(seen)
        assert "[/red][abc]:smile:" in seen
    assert "\x1b[1m" in written(styled(("x", "bold")), force_terminal=True), "our own styles still work"


def test_lines_and_bars_of_long_work_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    Live(show=True).say(HOSTILE)
    assert "[/red][abc]" in out.getvalue()
    bars = io.StringIO()
    live = Live(Words("{task.description} {task.fields[news]}"), show=True)
    from rich.progress import Progress

    progress = Progress(Words("{task.description} {task.fields[news]}"), console=Door(file=bars, width=200))
    progress.add_task(HOSTILE, news=HOSTILE)
    progress.refresh()
    progress.console.print(progress.get_renderable())
    assert bars.getvalue().count("[/red][abc]") >= 2
    assert live.bars is None
    for seen in (out.getvalue(), bars.getvalue()):
        assert not RAW.search(seen)
