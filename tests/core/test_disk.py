"""Files written whole: two writers at once, writers that were killed or fail."""

import os
import socket
from pathlib import Path

import pytest

from keysift.core import disk
from keysift.core.disk import is_unfinished, whole_folder, write_whole

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


def test_what_cannot_be_removed_does_not_stop_a_writer(tmp_path: Path) -> None:
    """As another user's file in a sticky folder; a folder cannot be unlinked either."""
    left = tmp_path / f".writing-{socket.gethostname()}-{GONE}-00000000"
    left.mkdir()
    write_whole(tmp_path / "a.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {left.name, "a.json"}


def test_what_cannot_be_moved_back_does_not_stop_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / f".run.writing-{socket.gethostname()}-{GONE}-abcd_123.old"
    left.mkdir()
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path == left:
            raise PermissionError(1, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with whole_folder(tmp_path / "run") as fresh:
        (fresh / "a").write_text("a")
    assert (tmp_path / "run" / "a").read_text() == "a"


@pytest.mark.parametrize("kind", ["", ".run"])
def test_a_host_whose_name_begins_like_this_one_is_another(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / f"{kind}.writing-train-{GONE}-4242-0a1b2c3d"
    theirs.mkdir() if kind else theirs.write_text("half")
    monkeypatch.setattr(disk.socket, "gethostname", lambda: "train")
    write_whole(tmp_path / "a.json", "{}")
    with whole_folder(tmp_path / "run"):
        pass
    assert theirs.exists()
