"""Atomic writes: concurrent writers, killed writers, failing writers."""

import os
import socket
from pathlib import Path

import pytest

from keysift.core import disk
from keysift.core.disk import atomic_folder, is_leftover, write_atomic

DEAD_PID = 99_999_999  # no process has this id


def test_two_writers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second writer starts and ends during the first. The file is complete at all times; the first writer wins."""
    file, sync, contents = tmp_path / "page.html", os.fsync, []

    def sync_after_second_writer(handle: int) -> None:
        monkeypatch.setattr(disk.os, "fsync", sync)
        write_atomic(file, "second")
        contents.append(file.read_text())
        sync(handle)

    monkeypatch.setattr(disk.os, "fsync", sync_after_second_writer)
    write_atomic(file, "first, and longer")
    assert [*contents, file.read_text()] == ["second", "first, and longer"]
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    prefix = f".writing-{socket.gethostname()}-"
    files_to_keep = [f"{prefix}{os.getpid()}-00000000", f"{prefix}notes.txt", ".writing-elsewhere-1-00000000"]
    for name in (*files_to_keep, f"{prefix}{DEAD_PID}-00000000"):
        (tmp_path / name).write_text("half")
    write_atomic(tmp_path / "a.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {*files_to_keep, "a.json"}, (
        "files of running writers, other hosts and users stay"
    )
    assert is_leftover(tmp_path / files_to_keep[0])
    assert not is_leftover(tmp_path / files_to_keep[1])


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomic(tmp_path / "folder", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_leftover_that_cannot_be_removed_does_not_stop_a_writer(tmp_path: Path) -> None:
    """A folder takes the place of another user's file in a sticky folder: neither can be unlinked."""
    leftover = tmp_path / f".writing-{socket.gethostname()}-{DEAD_PID}-00000000"
    leftover.mkdir()
    write_atomic(tmp_path / "a.json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {leftover.name, "a.json"}


def test_a_leftover_that_cannot_be_restored_does_not_stop_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / f".run.writing-{socket.gethostname()}-{DEAD_PID}-abcd_123.old"
    leftover.mkdir()
    rename = Path.rename

    def failing_rename(path: Path, target: Path) -> Path:
        if path == leftover:
            raise PermissionError(1, "Operation not permitted")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing_rename)
    with atomic_folder(tmp_path / "run") as fresh:
        (fresh / "a").write_text("a")
    assert (tmp_path / "run" / "a").read_text() == "a"


@pytest.mark.parametrize("prefix", ["", ".run"])
def test_leftovers_of_a_host_with_a_longer_name_are_kept(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = tmp_path / f"{prefix}.writing-train-{DEAD_PID}-4242-0a1b2c3d"
    foreign.mkdir() if prefix else foreign.write_text("half")
    monkeypatch.setattr(disk.socket, "gethostname", lambda: "train")
    write_atomic(tmp_path / "a.json", "{}")
    with atomic_folder(tmp_path / "run"):
        pass
    assert foreign.exists()
