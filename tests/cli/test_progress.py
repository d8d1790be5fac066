"""Progress without a terminal: a line on standard error every few seconds."""

import pytest

from keysift.cli.terminal import progress


def test_progress_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("keysift.core.progress.time.monotonic", lambda: now)
    with progress.ProgressBar() as bar:
        for done in range(1, 31):
            now += 1.0
            bar.update("layers", done, 30)
    captured = capsys.readouterr()
    assert captured.err == "".join(f"layers: {done} of 30\n" for done in (5, 10, 15, 20, 25, 30))
    assert captured.out == ""
