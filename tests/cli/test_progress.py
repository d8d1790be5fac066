"""Progress without a terminal: a line on standard error when some seconds have gone by, and none for short work."""

import pytest

from keysift.cli import progress


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("keysift.core.live.time.monotonic", lambda: now)
    with progress.Bar() as bar:
        for done in range(1, 31):
            now += 1.0
            bar.update("layers", done, 30)
    captured = capsys.readouterr()
    assert captured.err == "".join(f"layers: {done} of 30\n" for done in (5, 10, 15, 20, 25, 30))
    assert captured.out == ""
