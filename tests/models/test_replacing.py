"""Saving over a model is atomic: readers find a complete model, also after a crash."""

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
from tests.models.checks import TINY, perturbed_multiscreen, tokens_for
from tests.refusals import refuses
from tests.train.crash_points import run_forked, watch_changes


@pytest.fixture(params=["exchange", "two renames"])
def rename_method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "two renames":  # as on a file system that cannot exchange names
        monkeypatch.setattr(disk, "exchange", lambda left, right: False)
    return str(request.param)


def saved_seed(run: Path) -> int:
    """Seed (0 or 1) of the model saved in `run`."""
    result = load(run)
    return int(
        torch.equal(
            result.state_dict()["embedding.weight"],
            perturbed_multiscreen(TINY, seed=1).state_dict()["embedding.weight"],
        )
    )


@pytest.mark.slow
def test_a_save_killed_at_any_moment_leaves_a_complete_model(tmp_path: Path, rename_method: str) -> None:
    seeds, missing = [], 0
    for event_count in range(200):
        folder = tmp_path / str(event_count)
        run = folder / "run"
        save(perturbed_multiscreen(TINY), run)
        (run / "notes.txt").write_text("mine")

        def save_and_kill(folder: Path = folder, run: Path = run, event_count: int = event_count) -> None:
            remaining = event_count

            def count_event(event: str) -> None:
                nonlocal remaining
                if remaining == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                remaining -= 1

            watch_changes(folder, count_event)
            save(perturbed_multiscreen(TINY, seed=1), run)

        exit_code = run_forked(save_and_kill)
        if run.exists():
            seeds.append(saved_seed(run))
            assert (run / "notes.txt").read_text() == "mine"
        else:
            missing += 1
        save(
            perturbed_multiscreen(TINY, seed=seeds[-1] if seeds else 0), run
        )  # removes temporary folders and restores the directory after an interrupted rename
        assert (run / "notes.txt").read_text() == "mine"
        assert [path.name for path in folder.iterdir()] == ["run"]
        if exit_code == 0:
            break
    assert exit_code == 0
    assert len(seeds) > 10, "too few kill points were tested"
    assert seeds == sorted(seeds), "first the old model, then the new one"
    assert set(seeds) == {0, 1}
    assert missing == (0 if rename_method == "exchange" else 1)


_WRITER = """
import sys
from pathlib import Path
from keysift.models.save import save
from tests.models.checks import TINY, perturbed_multiscreen
from dataclasses import replace
models = [perturbed_multiscreen(TINY), perturbed_multiscreen(replace(TINY, position="rope", width=7), seed=1)]
for number in range(10_000):
    save(models[number % 2], Path(sys.argv[1]))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_concurrent_reader_finds_complete_models_only(tmp_path: Path) -> None:
    """The two models differ in width and in position encoding, so a mixture of their files is detected."""
    run, root = tmp_path / "run", Path(__file__).parent.parent.parent
    save(perturbed_multiscreen(TINY), run)
    command = [sys.executable, "-c", _WRITER, str(run)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        result = [load(run).config for _ in range(150)]
        writer.kill()
        writes = len(writer.stdout.readlines())
    kinds = {(config.position, config.width) for config in result}
    assert kinds == {("mipe", TINY.width), ("rope", 7)}
    assert writes > 5, "the writer hardly wrote"


def test_load_retries_while_a_directory_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an atomic exchange the directory is missing for a moment."""
    run = tmp_path / "run"
    monkeypatch.setattr("keysift.models.save.time.sleep", lambda seconds: save(perturbed_multiscreen(TINY), run))
    assert load(run).config == TINY


def test_load_does_not_mix_files_of_two_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from keysift.models import save as module

    run, read = tmp_path / "run", module.read_model_config
    save(perturbed_multiscreen(TINY), run)
    replaced = []

    def slow(path: Path) -> object:
        result = read(path)
        if not replaced:
            replaced.append(True)
            save(perturbed_multiscreen(TINY, seed=1), run)
        return result

    monkeypatch.setattr(module, "read_model_config", slow)
    tokens = tokens_for(perturbed_multiscreen(TINY), 1, 5)
    assert torch.equal(load(run)(tokens), perturbed_multiscreen(TINY, seed=1)(tokens))


def test_load_repeats_if_the_directory_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is replaced after its directory was opened is read again."""
    from keysift.models import save as module

    run, open_directory, load_model, loads = tmp_path / "run", os.open, module._load, []
    save(perturbed_multiscreen(TINY), run)

    def slow(path: str, flags: int) -> int:
        handle = open_directory(path, flags)
        monkeypatch.undo()
        save(perturbed_multiscreen(TINY, seed=1), run)
        monkeypatch.setattr(module, "_load", lambda directory: loads.append(directory) or load_model(directory))
        return handle

    monkeypatch.setattr(module.os, "open", slow)
    load(run)
    assert len(loads) == 2, "the first read was of a replaced directory"


def test_load_of_a_run_uses_one_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a run are links through `last`, which moves to a new checkpoint between the two reads here."""
    from keysift.models import save as module

    other = replace(TINY, width=7)
    save(perturbed_multiscreen(TINY), tmp_path / "old")
    save(perturbed_multiscreen(other), tmp_path / "new")
    (tmp_path / "last").symlink_to("old")
    for name in (module.CONFIG, module.WEIGHTS):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).symlink_to(f"../last/{name}")
    read, moved = module.read_model_config, []

    def slow(path: Path) -> object:
        result = read(path)
        if not moved:
            moved.append(True)
            (tmp_path / "next").symlink_to("new")
            (tmp_path / "next").rename(tmp_path / "last")
        return result

    monkeypatch.setattr(module, "read_model_config", slow)
    assert load(tmp_path / "run").config == other


def test_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert disk.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    with refuses("No such file", OSError):
        disk.exchange(tmp_path / "a", tmp_path / "nothing")

    class NoExchange:
        def renameat2(self, *arguments: object) -> int:
            return -1

    monkeypatch.setattr(disk.ctypes, "CDLL", lambda *a, **k: NoExchange())
    monkeypatch.setattr(disk.ctypes, "get_errno", lambda: errno.EINVAL)
    assert not disk.exchange(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(disk.sys, "platform", "elsewhere")
    assert not disk.exchange(tmp_path / "a", tmp_path / "b")


def test_temporary_folders_of_live_processes_are_kept(tmp_path: Path) -> None:
    alive = tmp_path / f".run.writing-{socket.gethostname()}-1-x"  # process 1 is alive and not ours
    other = tmp_path / ".run.writing-elsewhere-99999999-x"
    dead = tmp_path / f".run.writing-{socket.gethostname()}-99999999-x"
    for folder in (alive, other, dead):
        folder.mkdir()
    save(perturbed_multiscreen(TINY), tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, other.name, "run"])
