"""A stranger's files run nothing: a payload in any file of a run, a corpus or a tokenizer is never executed."""

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
from tests.train.in_process import go


class Payload:
    """Unpickled, it leaves a mark; so does anything that runs it as Python or hands it to a shell."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def forms(mark: Path, file: Path) -> list[bytes]:
    """Python for a module; for any other file a pickle, and one as torch.save wraps it."""
    if file.suffix == ".py":
        return [f"__import__('os').mkdir({str(mark)!r})\n".encode()]
    torch.save(Payload(mark), mark.with_suffix(".pt"))
    return [pickle.dumps(Payload(mark), 2), mark.with_suffix(".pt").read_bytes()]


@pytest.fixture(scope="module")
def made(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a built corpus with a trained tokenizer, each with all of its files."""
    folder = tmp_path_factory.mktemp("made")
    build_corpus(str(corpus), "bpe:300", folder / "corpus", show=False)
    fields = {"context": 16, "batch_tokens": 32, "steps": 2, "save_every": 2, "val_sequences": 2, "sample_tokens": 2}
    go(TrainConfig(data=str(folder / "corpus"), **fields), folder / "run")  # type: ignore[arg-type]
    return folder


def attempts(folder: Path) -> list[Callable[[], object]]:
    """Everything that reads these files."""
    run, words = folder / "run", ("--max-new-tokens", "1")
    return [
        lambda: _main(["train", "--resume", str(run), "--steps", "4", "--dry-run"]),
        lambda: _main(["train", "--resume", str(run), "--steps", "3", "--quiet"]),
        lambda: _main(["runs", str(folder)]),
        lambda: _main(["generate", str(run), "--prompt", "a", *words]),
        lambda: _main(["data", "show", str(folder / "corpus")]),
        lambda: keysift.load(run / "checkpoints" / "step-00000002"),
    ]


def resign(path: Path) -> None:
    (path / "manifest.json").unlink(missing_ok=True)
    (path / "manifest.json").write_text(json.dumps(checkpoint._hashes(path)))


@pytest.mark.slow
def test_no_payload_runs(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file() and not path.is_symlink())
    assert {str(file).split("/")[0] for file in files} == {"run", "corpus"}
    assert any(file.name.startswith("shard-") and "state" in file.parts for file in files)
    # What a stranger could add beside ours: state as earlier versions wrote it, modules, start-up files.
    state = Path("run/checkpoints/step-00000002/state")
    added = [state / ".metadata", state / "__0_0.distcp", Path("run/numpy.py"), Path("run/sitecustomize.py")]
    for number, file in enumerate([*files, *added]):
        mark = tmp_path / f"ran-{number}"
        for form in forms(mark, file):
            folder = tmp_path / "copy"
            shutil.copytree(made, folder, symlinks=True)
            corpus = folder / "corpus"
            text = (folder / "run" / "train.json").read_text().replace(str(made / "corpus"), str(corpus))
            (folder / "run" / "train.json").write_text(text)
            (folder / file).write_bytes(form)
            if file.name != "manifest.json":
                resign(folder / "run" / "checkpoints" / "step-00000002")
            monkeypatch.chdir(folder / "run")
            for attempt in attempts(folder):
                with suppress(keysift.KeysiftError, SystemExit):
                    attempt()
                assert not mark.exists(), f"{file} ran"
            monkeypatch.chdir(tmp_path)
            shutil.rmtree(folder)


def test_the_payload_would_be_noticed(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    plain, wrapped = forms(mark, Path("any"))
    for read in (lambda: pickle.loads(plain), lambda: torch.load(io.BytesIO(wrapped), weights_only=False)):
        read()
        assert mark.is_dir()
        mark.rmdir()
