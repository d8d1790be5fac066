"""Files written whole: two writers at once, writers that were killed or fail."""

import os
import socket
from pathlib import Path

import pytest

from keysift.core import disk
from keysift.core.disk import is_unfinished, write_whole

GONE = 99_999_999  # more than any system numbers its processes


def test_two_writers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one begins and ends while the first still writes: the file is whole at any time, at last the first's."""
    file, sync, seen = tmp_path / "page.html", os.fsync, []

    def interrupted(handle: int) -> None:
        monkeypatch.setattr(disk.os, "fsync", sync)
        write_whole(file, "second")
        seen.append(file.read_text())
        sync(handle)

    monkeypatch.setattr(disk.os, "fsync", interrupted)
    write_whole(file, "first, and longer")
    assert [*seen, file.read_text()] == ["second", "first, and longer"]
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    begins = f".writing-{socket.gethostname()}-"
    mine = [f"{begins}{os.getpid()}-00000000", f"{begins}notes.txt", ".writing-elsewhere-1-00000000"]
    for name in (*mine, f"{begins}{GONE}-00000000"):
        (tmp_path / name).write_text("half")
    write_whole(tmp_path / "a.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {*mine, "a.json"}, "a living writer's stays, and a stranger's"
    assert is_unfinished(tmp_path / mine[0])
    assert not is_unfinished(tmp_path / mine[1])


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
