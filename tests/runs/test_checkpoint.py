"""Damaged checkpoints are refused by name, and the previous checkpoint still loads."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from keysift.core.errors import KeysiftError
from keysift.models.architecture import MultiscreenArch
from keysift.runs import checkpoint, layout
from keysift.runs.directory import Run
from keysift.runs.metrics import last, read, truncate
from keysift.runs.summary import summary
from keysift.train.checkpoint import fail_together
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.loop import train
from keysift.train.manifest import read_manifest
from tests.refusals import refuses

pytestmark = pytest.mark.slow  # every test trains


@pytest.fixture(scope="module")
def finished_run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_briefly(corpus, tmp_path_factory.mktemp("runs") / "run")


def train_briefly(corpus: Path, run: Path) -> Path:
    """Train four steps with checkpoints at 2 and 4. Returns `run`."""
    fields = {"context": 16, "batch_tokens": 32, "steps": 4, "save_every": 2, "val_sequences": 2, "sample_tokens": 0}
    train(TrainConfig(model=MultiscreenArch.psi(2), data=str(corpus), **fields), run, show=False)  # type: ignore[arg-type]
    return run


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished_run, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def resume(run: Path) -> None:
    """Resume the run until step 6."""
    train(replace(read_manifest(Run(run)).config, steps=6), run, resume=True, show=False)


FILES = ["model.safetensors", "config.json", "progress.json", "state/shard-00000.safetensors", "state/index.json"]


@pytest.mark.parametrize("file", FILES)
def test_a_corrupt_file_is_refused_and_the_previous_checkpoint_loads(run: Path, file: str) -> None:
    path = run / "checkpoints" / "step-00000004" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with refuses(f"{file} is corrupt: .* remove the folder step-00000004 to resume from step-00000002"):
        resume(run)
    shutil.rmtree(path.parents[1] if file.startswith("state") else path.parent)
    resume(run)
    assert [line["step"] for line in read(run / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_missing_files(run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    (newest / "model.safetensors").unlink()
    with refuses("model.safetensors is missing"):
        resume(run)
    (newest / "manifest.json").write_text("{")
    with refuses("has no readable manifest.json"):
        checkpoint.verify(newest)
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    with refuses("there is no older checkpoint", KeysiftError):
        checkpoint.verify(newest)


def test_leftovers_of_a_killed_process_are_removed(run: Path) -> None:
    folder = run / "checkpoints"
    for name in (".step-00000006.writing", ".step-00000001.removing"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("half")
    resume(run)
    assert sorted(path.name for path in folder.iterdir()) == ["last", "step-00000004", "step-00000006"]


def test_unknown_files_are_not_removed(run: Path) -> None:
    folder = run / "checkpoints"
    names = (".git", "step-00000005", "step-notes", ".step-mine.writing", ".step-00000007.writing.old")
    for name in names:
        (folder / name).mkdir()
        (folder / name / "notes.txt").write_text("own notes")
    (folder / ".step-00000009.writing").symlink_to(folder / ".git")
    assert layout.checkpoint_steps(folder) == [2, 4]
    resume(run)
    assert layout.saved_step(run) == 6
    assert all((folder / name / "notes.txt").read_text() == "own notes" for name in (*names, ".step-00000009.writing"))


def test_unknown_files_in_place_of_links_are_refused_and_kept(run: Path) -> None:
    folder = run / "checkpoints"
    (folder / "last").unlink()
    (folder / "last").mkdir()
    (folder / "last" / "notes.txt").write_text("own notes")
    with refuses("last is a folder that does not belong to this run; move it away to resume"):
        resume(run)
    assert (folder / "last" / "notes.txt").read_text() == "own notes"
    shutil.rmtree(folder / "last")
    (run / "config.json").unlink()
    (run / "config.json").write_text("own notes")
    with refuses("config.json is a file that does not belong to this run; move it away to resume"):
        resume(run)
    assert (run / "config.json").read_text() == "own notes"


MANIFESTS = [
    "[]",
    "{",
    "3",
    '{"a": 3}',
    '{"a": [1]}',
    '{"../../x": [1, "0"]}',
    '{"/etc/passwd": [1, "0"]}',
    "[" * 99999,
]


@pytest.mark.parametrize("text", MANIFESTS, ids=range(len(MANIFESTS)))
def test_an_invalid_manifest_is_refused(run: Path, text: str) -> None:
    (run / "checkpoints" / "step-00000004" / "manifest.json").write_text(text)
    with refuses("step-00000004 has no readable manifest.json .*remove the folder"):
        resume(run)


@pytest.mark.parametrize("text", ["[]", "{", '{"step": 4}', '{"step": "4"}'])
def test_invalid_progress_is_refused(run: Path, text: str) -> None:
    """Refused even if the manifest matches the file."""
    newest = run / "checkpoints" / "step-00000004"
    (newest / "progress.json").write_text(text)
    rewrite_manifest(newest)
    with refuses("progress.json cannot be read .*remove the folder"):
        resume(run)


def rewrite_manifest(path: Path) -> None:
    """Write hashes that match the changed files."""
    (path / "manifest.json").unlink()
    (path / "manifest.json").write_text(json.dumps(checkpoint._hashes(path)))


def test_a_failed_save_says_whether_a_checkpoint_exists(tmp_path: Path) -> None:
    world = World(0, 1, torch.device("cpu"))

    def raise_disk_full() -> None:
        raise OSError(28, "No space left on device")

    with refuses("saving step 3 in .* failed .*No space left on device.*no checkpoint was written yet"):
        fail_together(raise_disk_full, tmp_path, 3, world)
    progress = checkpoint.Progress(step=3, best=None, best_step=None, seconds=0.0, processes=1)
    with pytest.raises(OSError, match="No space"), checkpoint.new_checkpoint(tmp_path, progress):
        raise_disk_full()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_place_of_the_checkpoint_folder(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")
    with refuses("saving step 2 in .* failed .*no checkpoint was written yet"):
        train(None, run, resume=True, show=False)


def test_an_incomplete_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo')
    truncate(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


DAMAGE = [b'{"step": 2, "lo', b"[]", b"2", b'{"loss": 1}', b'{"step": "2"}', b"\xff", b"[" * 9999]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_line_is_skipped(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'\n{"step": 3, "mfu": 0.5}\n' + damage)
    assert list(read(path)) == [{"step": 1}, {"step": 3, "mfu": 0.5}]
    assert last(path) == {"step": 3, "mfu": 0.5}
    truncate(path, 3)
    assert [line["step"] for line in read(path)] == [1, 3]


def test_copies_of_checkpoints_are_ignored(run: Path) -> None:
    folder = run / "checkpoints"
    for name in ("step-00000004.bak", "step-", "step-4"):
        shutil.copytree(folder / "step-00000004", folder / name)
    assert layout.checkpoint_steps(folder) == [2, 4]
    assert summary(run).saved == 4
    resume(run)
    assert layout.saved_step(run) == 6
    assert (folder / "step-00000004.bak" / "model.safetensors").is_file()
