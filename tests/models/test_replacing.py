"""Saving onto a model: under its name there is always one whole model, for every reader and after every crash."""

import errno
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from keysift.core import disk
from keysift.models.save import load, save
from tests.models.checks import TINY, opened, tokens_for
from tests.refusals import refuses
from tests.train.crash_points import child, watch


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "two renames":  # as on a file system that cannot exchange names
        monkeypatch.setattr(disk, "exchange", lambda left, right: False)
    return str(request.param)


def which(run: Path) -> int:
    """The seed of the model that is saved there."""
    found = load(run)
    return int(
        torch.equal(found.state_dict()["embedding.weight"], opened(TINY, seed=1).state_dict()["embedding.weight"])
    )


@pytest.mark.slow
def test_killed_at_any_moment_a_whole_model_has_the_name(tmp_path: Path, way: str) -> None:
    seen, missing = [], 0
    for moment in range(200):
        folder = tmp_path / str(moment)
        run = folder / "run"
        save(opened(TINY), run)
        (run / "notes.txt").write_text("mine")

        def work(folder: Path = folder, run: Path = run, moment: int = moment) -> None:
            left = moment

            def see(event: str) -> None:
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

            watch(folder, see)
            save(opened(TINY, seed=1), run)

        ended = child(work)
        if run.exists():
            seen.append(which(run))
            assert (run / "notes.txt").read_text() == "mine"
        else:
            missing += 1
        save(opened(TINY, seed=seen[-1] if seen else 0), run)  # tidies up, and mends what two renames left
        assert (run / "notes.txt").read_text() == "mine"
        assert [path.name for path in folder.iterdir()] == ["run"]
        if ended == 0:
            break
    assert ended == 0
    assert len(seen) > 10, "too few moments were tried"
    assert seen == sorted(seen), "first the old model, then the new one"
    assert set(seen) == {0, 1}
    assert missing == (0 if way == "exchange" else 1)


_WRITER = """
import sys
from pathlib import Path
from keysift.models.save import save
from tests.models.checks import TINY, opened
from dataclasses import replace
models = [opened(TINY), opened(replace(TINY, position="rope", width=7), seed=1)]
for number in range(10_000):
    save(models[number % 2], Path(sys.argv[1]))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_reader_in_a_loop_meets_whole_models_only(tmp_path: Path) -> None:
    """The two models differ in sizes and in what no size shows: a mixture would be refused, or worse, load."""
    run, root = tmp_path / "run", Path(__file__).parent.parent.parent
    save(opened(TINY), run)
    command = [sys.executable, "-c", _WRITER, str(run)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        found = [load(run).config for _ in range(150)]
        writer.kill()
        writes = len(writer.stdout.readlines())
    kinds = {(config.position, config.width) for config in found}
    assert kinds == {("mipe", TINY.width), ("rope", 7)}
    assert writes > 5, "the writer hardly wrote"


def test_a_model_that_comes_while_it_is_looked_for_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where names are not exchanged, nothing has the name for a moment."""
    run = tmp_path / "run"
    monkeypatch.setattr("keysift.models.save.time.sleep", lambda seconds: save(opened(TINY), run))
    assert load(run).config == TINY


def test_a_reader_does_not_mix_what_was_replaced_between_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from keysift.models import save as module

    run, read = tmp_path / "run", module.read_kind
    save(opened(TINY), run)
    replaced = []

    def slow(path: Path) -> object:
        found = read(path)
        if not replaced:
            replaced.append(True)
            save(opened(TINY, seed=1), run)
        return found

    monkeypatch.setattr(module, "read_kind", slow)
    tokens = tokens_for(opened(TINY), 1, 5)
    assert torch.equal(load(run)(tokens), opened(TINY, seed=1)(tokens))


def test_a_reader_knows_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is replaced between opening its directory and looking at the name is read again."""
    from keysift.models import save as module

    run, opening, loading, read = tmp_path / "run", os.open, module._load, []
    save(opened(TINY), run)

    def slow(path: str, flags: int) -> int:
        handle = opening(path, flags)
        monkeypatch.undo()
        save(opened(TINY, seed=1), run)
        monkeypatch.setattr(module, "_load", lambda directory: read.append(directory) or loading(directory))
        return handle

    monkeypatch.setattr(module.os, "open", slow)
    load(run)
    assert len(read) == 2, "the first reading was not of the directory that is held"


def test_the_files_of_a_run_are_of_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are links through `last`, which leads elsewhere when a checkpoint is done; here between two reads."""
    from keysift.models import save as module

    other = replace(TINY, width=7)
    save(opened(TINY), tmp_path / "old")
    save(opened(other), tmp_path / "new")
    (tmp_path / "last").symlink_to("old")
    for name in (module.CONFIG, module.WEIGHTS):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).symlink_to(f"../last/{name}")
    read, moved = module.read_kind, []

    def slow(path: Path) -> object:
        found = read(path)
        if not moved:
            moved.append(True)
            (tmp_path / "next").symlink_to("new")
            (tmp_path / "next").rename(tmp_path / "last")
        return found

    monkeypatch.setattr(module, "read_kind", slow)
    assert load(tmp_path / "run").config == other


def test_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert disk.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    with refuses("No such file", OSError):
        disk.exchange(tmp_path / "a", tmp_path / "nothing")

    class Without:
        def renameat2(self, *arguments: object) -> int:
            return -1

    monkeypatch.setattr(disk.ctypes, "CDLL", lambda *a, **k: Without())
    monkeypatch.setattr(disk.ctypes, "get_errno", lambda: errno.EINVAL)
    assert not disk.exchange(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(disk.sys, "platform", "elsewhere")
    assert not disk.exchange(tmp_path / "a", tmp_path / "b")


def test_what_the_living_write_is_left_alone(tmp_path: Path) -> None:
    alive = tmp_path / f".run.writing-{socket.gethostname()}-1-x"  # process 1 is alive and not ours
    other = tmp_path / ".run.writing-elsewhere-99999999-x"
    dead = tmp_path / f".run.writing-{socket.gethostname()}-99999999-x"
    for folder in (alive, other, dead):
        folder.mkdir()
    save(opened(TINY), tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, other.name, "run"])
