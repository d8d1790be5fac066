"""A film of a run: which checkpoints it shows, in which order, and what it refuses."""

import fcntl
from itertools import pairwise
from pathlib import Path

import pytest

from keysift.core.errors import DataError
from keysift.data.tokenizers.bytes import Bytes
from keysift.lens.film import FRAMES, film, spaced
from keysift.lens.keysift_model import KeysiftModel, open_keysift_model
from keysift.models.save import save
from keysift.records.lens import Record
from keysift.runs.layout import CHECKPOINTS, LOCK, MANIFEST, TRAIN, checkpoint_name
from tests.lens.models import LINE, transformer
from tests.refusals import refuses

TEXTS = {"line": LINE}


def write_checkpoint(run: Path, step: int) -> Path:
    path = run / CHECKPOINTS / checkpoint_name(step)
    save(transformer().model, path)
    Bytes().save(path)
    (path / MANIFEST).write_text("{}")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "first"
    path.mkdir()
    (path / TRAIN).write_text("{}")
    return path


def steps(records: list[Record]) -> list[int]:
    return [record.made["step"] for record in records]


def test_steps_are_spaced_and_keep_the_ends() -> None:
    assert spaced([10, 20, 30]) == [10, 20, 30]
    kept = spaced(list(range(0, 10_000, 10)))
    assert len(kept) == FRAMES
    assert (kept[0], kept[-1]) == (0, 9_990)
    gaps = [b - a for a, b in pairwise(kept)]
    assert max(gaps) - min(gaps) <= 10


def test_every_checkpoint_becomes_a_frame(run: Path) -> None:
    for step in (200, 100):
        write_checkpoint(run, step)
    write_checkpoint(run, 300).joinpath(MANIFEST).unlink()  # incomplete
    seen = [steps(records) for records in film(run, TEXTS, sample=0)]
    assert seen == [[100], [100, 200]]
    *_, records = film(run, TEXTS, sample=0)
    assert [record.model.name for record in records] == ["first, step 100", "first, step 200"]
    assert all(len(record.maps) == 1 for record in records)


def test_a_run_in_training_is_watched_to_its_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(run, 100)
    (run / LOCK).touch()
    lock = (run / LOCK).open()
    fcntl.flock(lock, fcntl.LOCK_EX)

    def train(seconds: float) -> None:
        """Save the last checkpoint, remove the older one and end."""
        write_checkpoint(run, 200)
        (run / CHECKPOINTS / checkpoint_name(100) / MANIFEST).unlink()
        lock.close()

    monkeypatch.setattr("keysift.lens.film.time.sleep", train)
    assert [steps(records) for records in film(run, TEXTS, sample=0)] == [[100], [100, 200]]


def test_a_checkpoint_that_disappears_is_left_out(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, kept = write_checkpoint(run, 100), write_checkpoint(run, 200)
    (kept / "model.safetensors").rename(run / "weights")

    def remove_first(path: Path) -> KeysiftModel:
        if path == gone:
            (gone / MANIFEST).unlink()
            raise DataError("config.json is missing")
        return open_keysift_model(path)

    monkeypatch.setattr("keysift.lens.film.open_keysift_model", remove_first)
    with pytest.raises(DataError):  # a complete checkpoint that cannot be read is an error
        list(film(run, TEXTS, sample=0))
    (run / "weights").rename(kept / "model.safetensors")
    (gone / MANIFEST).write_text("{}")
    assert [steps(records) for records in film(run, TEXTS, sample=0)] == [[200]]


def test_refusals(run: Path, tmp_path: Path) -> None:
    with refuses("is not a run directory of keysift train; --watch shows the checkpoints of a run"):
        next(film(tmp_path, TEXTS))
    with refuses("has no complete checkpoint; train it first, or name another run"):
        next(film(run, TEXTS))
