"""Damage is found, named and refused; the checkpoint before it loads."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from keysift.core.errors import KeysiftError
from keysift.train import checkpoint, layout
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.loop import train
from keysift.train.metrics import cut, read
from keysift.train.run import Run
from tests.refusals import refuses


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(corpus, tmp_path_factory.mktemp("runs") / "run")


def made(corpus: Path, run: Path) -> Path:
    fields = {"context": 16, "batch_tokens": 32, "steps": 4, "every": 2, "val_sequences": 2, "sample_tokens": 0}
    train(TrainConfig(psi=2, data=str(corpus), **fields), run, show=False)  # type: ignore[arg-type]
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def go_on(run: Path) -> None:
    train(replace(Run(run).facts().config, steps=6), run, resume=True, show=False)


FILES = ["model.safetensors", "config.json", "progress.json", "state/__0_0.distcp", "state/.metadata"]


@pytest.mark.parametrize("file", FILES)
def test_one_changed_byte_is_refused_and_the_one_before_loads(run: Path, file: str) -> None:
    path = run / "checkpoints" / "step-00000004" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with refuses(f"{file} is corrupt: .* remove the folder step-00000004 to go on from step-00000002"):
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
    with refuses("no older checkpoint is there", KeysiftError):
        checkpoint.verify(newest)


def test_what_a_killed_process_left_is_swept_away(run: Path) -> None:
    folder = run / "checkpoints"
    (folder / ".step-00000006.writing").mkdir()
    (folder / "step-00000005").mkdir()
    (folder / "step-00000005" / "config.json").write_text("half")
    assert layout.steps(folder) == [2, 4]
    go_on(run)
    assert sorted(path.name for path in folder.iterdir()) == ["last", "step-00000004", "step-00000006"]


def test_a_failure_names_what_is_left(tmp_path: Path) -> None:
    world = World(0, 1, torch.device("cpu"))

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with refuses("saving step 3 in .* failed .*No space left on device.*no checkpoint was written yet"):
        checkpoint.save(tmp_path / "checkpoints", 3, {"a": torch.zeros(2)}, {}, full, world)
    assert list((tmp_path / "checkpoints").iterdir()) == []
    (tmp_path / "file").write_text("")
    with refuses("saving step 3 in .* failed"):
        checkpoint.save(tmp_path / "file" / "checkpoints", 3, {}, {}, full, world)


def test_a_torn_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo')
    cut(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
