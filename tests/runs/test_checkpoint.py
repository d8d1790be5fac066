"""Damage is found, named and refused; the checkpoint before it loads."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from keysift.core.errors import KeysiftError
from keysift.models.arch import MultiscreenArch
from keysift.runs import checkpoint, layout
from keysift.runs.directory import Run
from keysift.runs.metrics import cut, last, read
from keysift.runs.summary import summary
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.facts import read_facts
from keysift.train.loop import train
from keysift.train.state import together
from tests.refusals import refuses

pytestmark = pytest.mark.slow  # every test trains


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(corpus, tmp_path_factory.mktemp("runs") / "run")


def made(corpus: Path, run: Path) -> Path:
    fields = {"context": 16, "batch_tokens": 32, "steps": 4, "save_every": 2, "val_sequences": 2, "sample_tokens": 0}
    train(TrainConfig(model=MultiscreenArch.psi(2), data=str(corpus), **fields), run, show=False)  # type: ignore[arg-type]
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def go_on(run: Path) -> None:
    train(replace(read_facts(Run(run)).config, steps=6), run, resume=True, show=False)


FILES = ["model.safetensors", "config.json", "progress.json", "state/shard-00000.safetensors", "state/index.json"]


@pytest.mark.parametrize("file", FILES)
def test_one_changed_byte_is_refused_and_the_one_before_loads(run: Path, file: str) -> None:
    path = run / "checkpoints" / "step-00000004" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with refuses(f"{file} is corrupt: .* remove the folder step-00000004 to resume from step-00000002"):
        go_on(run)
    shutil.rmtree(path.parents[1] if file.startswith("state") else path.parent)
    go_on(run)
    assert [line["step"] for line in read(run / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_missing_files(run: Path) -> None:
    newest = run / "checkpoints" / "step-00000004"
    (newest / "model.safetensors").unlink()
    with refuses("model.safetensors is missing"):
        go_on(run)
    (newest / "manifest.json").write_text("{")
    with refuses("has no readable manifest.json"):
        checkpoint.verify(newest)
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    with refuses("there is no older checkpoint", KeysiftError):
        checkpoint.verify(newest)


def test_what_a_killed_process_left_is_swept_away(run: Path) -> None:
    folder = run / "checkpoints"
    for name in (".step-00000006.writing", ".step-00000001.removing"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("half")
    go_on(run)
    assert sorted(path.name for path in folder.iterdir()) == ["last", "step-00000004", "step-00000006"]


def test_what_is_not_ours_is_not_swept_away(run: Path) -> None:
    folder = run / "checkpoints"
    kept = (".git", "step-00000005", "step-notes", ".step-mine.writing", ".step-00000007.writing.old")
    for name in kept:
        (folder / name).mkdir()
        (folder / name / "mine.txt").write_text("mine")
    (folder / ".step-00000009.writing").symlink_to(folder / ".git")
    assert layout.steps(folder) == [2, 4]
    go_on(run)
    assert layout.saved(run) == 6
    assert all((folder / name / "mine.txt").read_text() == "mine" for name in (*kept, ".step-00000009.writing"))


def test_foreign_things_in_the_place_of_links_are_refused_and_stay(run: Path) -> None:
    folder = run / "checkpoints"
    (folder / "last").unlink()
    (folder / "last").mkdir()
    (folder / "last" / "mine.txt").write_text("mine")
    with refuses("last is a folder that is not this run's; move it away to resume"):
        go_on(run)
    assert (folder / "last" / "mine.txt").read_text() == "mine"
    shutil.rmtree(folder / "last")
    (run / "config.json").unlink()
    (run / "config.json").write_text("mine")
    with refuses("config.json is a file that is not this run's; move it away to resume"):
        go_on(run)
    assert (run / "config.json").read_text() == "mine"


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
def test_a_manifest_that_is_none(run: Path, text: str) -> None:
    (run / "checkpoints" / "step-00000004" / "manifest.json").write_text(text)
    with refuses("step-00000004 has no readable manifest.json .*remove the folder"):
        go_on(run)


@pytest.mark.parametrize("text", ["[]", "{", '{"step": 4}', '{"step": "4"}'])
def test_progress_that_is_none(run: Path, text: str) -> None:
    """Also when the manifest was made to fit."""
    newest = run / "checkpoints" / "step-00000004"
    (newest / "progress.json").write_text(text)
    resign(newest)
    with refuses("progress.json does not say how far the run was .*remove the folder"):
        go_on(run)


def resign(path: Path) -> None:
    """What somebody who changes a file would do next."""
    (path / "manifest.json").unlink()
    (path / "manifest.json").write_text(json.dumps(checkpoint._hashes(path)))


def test_a_failure_names_what_is_left(tmp_path: Path) -> None:
    world = World(0, 1, torch.device("cpu"))

    def full() -> None:
        raise OSError(28, "No space left on device")

    with refuses("saving step 3 in .* failed .*No space left on device.*no checkpoint was written yet"):
        together(full, tmp_path, 3, world)
    progress = checkpoint.Progress(step=3, best=None, best_step=None, seconds=0.0, processes=1)
    with pytest.raises(OSError, match="No space"), checkpoint.written(tmp_path, progress):
        full()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_checkpoints(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")
    with refuses("saving step 2 in .* failed .*no checkpoint was written yet"):
        train(None, run, resume=True, show=False)


def test_a_torn_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo')
    cut(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


DAMAGE = [b'{"step": 2, "lo', b"[]", b"2", b'{"loss": 1}', b'{"step": "2"}', b"\xff", b"[" * 9999]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_line_costs_no_other(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damage + b'\n{"step": 3, "share_of_peak": 0.5}\n' + damage)
    assert list(read(path)) == [{"step": 1}, {"step": 3, "mfu": 0.5}]
    assert last(path) == {"step": 3, "mfu": 0.5}
    cut(path, 3)
    assert [line["step"] for line in read(path)] == [1, 3]


def test_a_copy_beside_the_checkpoints_is_not_one(run: Path) -> None:
    folder = run / "checkpoints"
    for name in ("step-00000004.bak", "step-", "step-4"):
        shutil.copytree(folder / "step-00000004", folder / name)
    assert layout.steps(folder) == [2, 4]
    assert summary(run).saved == 4
    go_on(run)
    assert layout.saved(run) == 6
    assert (folder / "step-00000004.bak" / "model.safetensors").is_file()
