"""A payload in any file of a run, a corpus or a tokenizer is never executed."""

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.cli.main import _main
from keysift.data.shards import build as build_corpus
from keysift.runs import checkpoint
from keysift.train.config import TrainConfig
from tests.train.in_process import run_training


class Payload:
    """Creates the folder `mark` when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def payloads(mark: Path, file: Path) -> list[bytes]:
    """Payloads for `file`: Python code for a module, otherwise a plain pickle and a torch.save archive."""
    if file.suffix == ".py":
        return [f"__import__('os').mkdir({str(mark)!r})\n".encode()]
    torch.save(Payload(mark), mark.with_suffix(".pt"))
    return [pickle.dumps(Payload(mark), 2), mark.with_suffix(".pt").read_bytes()]


@pytest.fixture(scope="module")
def originals(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a built corpus, its trained tokenizer and a run on it."""
    folder = tmp_path_factory.mktemp("originals")
    build_corpus(str(corpus), "bpe:300", folder / "corpus", show=False)
    fields = {"context": 16, "batch_tokens": 32, "steps": 2, "save_every": 2, "val_sequences": 2, "sample_tokens": 2}
    run_training(TrainConfig(data=str(folder / "corpus"), **fields), folder / "run")  # type: ignore[arg-type]
    return folder


def readers(folder: Path) -> list[Callable[[], object]]:
    """Commands and functions that read these files."""
    run, length = folder / "run", ("--max-new-tokens", "1")
    return [
        lambda: _main(["train", "--resume", str(run), "--steps", "4", "--dry-run"]),
        lambda: _main(["train", "--resume", str(run), "--steps", "3", "--quiet"]),
        lambda: _main(["runs", str(folder)]),
        lambda: _main(["generate", str(run), "--prompt", "a", *length]),
        lambda: _main(["data", "show", str(folder / "corpus")]),
        lambda: keysift.load(run / "checkpoints" / "step-00000002"),
    ]


def rewrite_manifest(path: Path) -> None:
    """Write hashes that match the changed files."""
    (path / "manifest.json").unlink(missing_ok=True)
    (path / "manifest.json").write_text(json.dumps(checkpoint._hashes(path)))


@pytest.mark.slow
def test_no_payload_runs(originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(
        path.relative_to(originals) for path in originals.rglob("*") if path.is_file() and not path.is_symlink()
    )
    assert {str(file).split("/")[0] for file in files} == {"run", "corpus"}
    assert any(file.name.startswith("shard-") and "state" in file.parts for file in files)
    # Files that an attacker could add: state of torch.distributed.checkpoint, modules, start-up files.
    state = Path("run/checkpoints/step-00000002/state")
    added = [state / ".metadata", state / "__0_0.distcp", Path("run/numpy.py"), Path("run/sitecustomize.py")]
    for number, file in enumerate([*files, *added]):
        mark = tmp_path / f"ran-{number}"
        for payload in payloads(mark, file):
            folder = tmp_path / "copy"
            shutil.copytree(originals, folder, symlinks=True)
            corpus = folder / "corpus"
            text = (folder / "run" / "train.json").read_text().replace(str(originals / "corpus"), str(corpus))
            (folder / "run" / "train.json").write_text(text)
            (folder / file).write_bytes(payload)
            if file.name != "manifest.json":
                rewrite_manifest(folder / "run" / "checkpoints" / "step-00000002")
            monkeypatch.chdir(folder / "run")
            for read in readers(folder):
                with suppress(keysift.KeysiftError, SystemExit):
                    read()
                assert not mark.exists(), f"{file} was executed"
            monkeypatch.chdir(tmp_path)
            shutil.rmtree(folder)


def test_a_payload_leaves_its_mark(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    plain, wrapped = payloads(mark, Path("any"))
    for read in (lambda: pickle.loads(plain), lambda: torch.load(io.BytesIO(wrapped), weights_only=False)):
        read()
        assert mark.is_dir()
        mark.rmdir()
