"""Run directories: retention, locking, resuming, copies, refused folders, search."""

import os
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import keysift
from keysift.data.shards import build as build_corpus
from keysift.data.shards import prepare
from keysift.data.tokenizers.load import load_tokenizer
from keysift.runs import layout
from keysift.runs import summary as summaries
from keysift.runs.checkpoint import update_last_link
from keysift.runs.directory import Run
from keysift.runs.metrics import read
from keysift.runs.summary import find_runs, summary
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.manifest import read_manifest
from keysift.train.source import TextSource
from tests.refusals import refuses
from tests.runs.handwritten import falling, write_run
from tests.train.in_process import distance, losses, run_training

pytestmark = pytest.mark.slow  # most tests train


def test_retention(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(replace(tiny, save_every=2, keep_last=1, keep_every=6, keep_best=False), tmp_path / "run")
    assert layout.checkpoint_steps(run / "checkpoints") == [6, 12]
    rising = replace(tiny, save_every=2, keep_last=1, lr=8.0, warmup=0)
    run = run_training(rising, tmp_path / "rising")
    values = {line["step"]: line["val_loss"] for line in read(run / "metrics.jsonl") if "val_loss" in line}
    best = min(values, key=lambda step: values[step])
    assert layout.checkpoint_steps(run / "checkpoints") == sorted({best, 12})


def test_the_time_limit_starts_again_on_resume(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(replace(tiny, steps=None, minutes=0.001), tmp_path / "run")
    before = len(losses(run))
    assert summary(run).state == "time over"
    run_training(None, run, resume=True)
    assert len(losses(run)) > before
    assert summary(run).state == "time over"


@pytest.mark.parametrize("text", ["{", "{}", "[3]", "[" * 100_000], ids=["torn", "object", "number", "deep"])
def test_a_damaged_environment_file_is_refused(tiny: TrainConfig, tmp_path: Path, text: str) -> None:
    run = run_training(tiny, tmp_path / "run")
    before = (run / "train.json").read_text()
    (run / "environment.json").write_text(text)
    assert summary(run).state == "finished", "the summary does not need this file"
    with refuses("environment.json is not .*; move it away to resume the run"):
        run_training(replace(read_manifest(Run(run)).config, steps=14), run, resume=True)
    assert (run / "train.json").read_text() == before


def test_refusals(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(tiny, tmp_path / "run")
    with refuses("already holds a run; resume it with keysift train --resume"):
        run_training(tiny, run)
    with refuses("is finished: it is at step 12 of 12; pass a larger --steps to continue"):
        run_training(None, run, resume=True)
    with refuses("a new run needs a config"):
        run_training(None, tmp_path / "other")
    with refuses("holds no run: train.json is missing"):
        run_training(None, tmp_path / "other", resume=True)
    with refuses("strategy ddp needs torchrun"):
        run_training(replace(tiny, strategy="ddp"), tmp_path / "alone")
    with refuses("device 'cuda:7' cannot be used here"):
        run_training(replace(tiny, device="cuda:7"), tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with refuses("cannot be written"):
        run_training(tiny, tmp_path / "file" / "run")
    (run / "train.json").write_text("{")
    with refuses("train.json is not JSON"):
        run_training(None, run, resume=True)
    for text in ("{}", "[]", '{"config": 3}', '{"config": {}}'):
        (run / "train.json").write_text(text)
        with refuses("train.json does not describe a run|needs 'stream'"):
            run_training(None, run, resume=True)
    (run / "train.json").write_text('{"config": {"arch": 3, "data": "x", "steps": 1}, "parameters": 1}')
    with refuses(r"does not describe a run \(arch, data or steps\)"):
        summary(run)


def test_a_second_trainer_is_refused(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(tiny, tmp_path / "run")
    other_trainer = Run(run)
    other_trainer.lock()
    try:
        with refuses("another process is training in"):
            run_training(replace(read_manifest(Run(run)).config, steps=14), run, resume=True)
    finally:
        other_trainer.unlock()
    run_training(replace(read_manifest(Run(run)).config, steps=14), run, resume=True)
    assert len(losses(run)) == 14


def test_a_pipe_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """Opening a pipe without a reader fails at once; a blocking open would wait forever."""
    os.mkfifo(tmp_path / layout.LOCK)
    with refuses("lock.* cannot be opened .*; remove it"):
        Run(tmp_path).lock()


def test_changed_text_is_refused(tiny: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("00.txt", "01.txt", "02.txt"):
        (text / name).write_text((corpus / name).read_text())
    run = run_training(replace(tiny, data=str(text), val_fraction=0.3), tmp_path / "run")
    (text / "00.txt").write_text("something else " * 50)
    with refuses("is not the text that .* was trained on: its token stream has another hash"):
        run_training(replace(read_manifest(Run(run)).config, steps=14), run, resume=True)


def test_the_state_during_training_is_running(tiny: TrainConfig, tmp_path: Path) -> None:
    states = set()
    run = run_training(tiny, tmp_path / "run", on_step=lambda line: states.add(summary(tmp_path / "run").state))
    assert states == {"running"}
    assert summary(run).state == "finished"
    assert summary(run).saved == 12


def test_a_checkpoint_counts_once_the_run_links_to_it(tmp_path: Path) -> None:
    """A run killed before it linked the last checkpoint: the summary describes the checkpoint that the run loads."""
    run, checkpoints = tmp_path / "run", tmp_path / "run" / layout.CHECKPOINTS
    write_run(run, falling(1.0))
    shutil.copytree(checkpoints / layout.checkpoint_name(40), checkpoints / layout.checkpoint_name(20))
    update_last_link(checkpoints, layout.checkpoint_name(20))
    assert (summary(run).state, summary(run).saved) == ("stopped", 20)
    Run(run).recover()
    assert (summary(run).state, summary(run).saved) == ("finished", 40)
    shutil.rmtree(checkpoints / layout.checkpoint_name(40))
    assert summary(run).saved == 20, "a dangling link is ignored"


def test_weights_are_linked_last(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []

    def symlink_to(path: Path, target: Path) -> None:
        linked.append(path.name)
        os.symlink(target, path)

    run = run_training(tiny, tmp_path / "run")
    for link in [path for path in run.iterdir() if path.is_symlink()]:
        link.unlink()
    monkeypatch.setattr(Path, "symlink_to", symlink_to)
    Run(run).link_model()
    assert set(linked) >= {"config.json", "keysift_tokenizer.json"}
    assert linked[-1] == "model.safetensors", "a crash between two links leaves weights that cannot be loaded"
    keysift.load(run)


def test_a_run_on_a_built_corpus_resumes_with_its_tokenizer(tiny: TrainConfig, tmp_path: Path) -> None:
    build_corpus(tiny.data, "bpe:300", tmp_path / "corpus", show=False)
    run = run_training(replace(tiny, data=str(tmp_path / "corpus"), steps=4), tmp_path / "run")
    run_training(replace(read_manifest(Run(run)).config, steps=6), run, resume=True)
    assert len(losses(run)) == 6
    assert load_tokenizer(run).vocab_size == 300
    lines = [line for line in read(run / "metrics.jsonl") if "val_loss" in line]
    held_out = prepare(str(tmp_path / "corpus")).split("val", tiny.val_fraction)
    for line in lines:
        assert line["val_bits_per_byte"] == pytest.approx(line["val_loss"] / 0.6931472 / held_out.bytes_per_token)


def test_generated_documents_are_not_split(tiny: TrainConfig, tmp_path: Path) -> None:
    """Every sequence starts with a document, so a needle and its question are in the same sequence."""
    config = replace(tiny, data="abcdigits:documents=60,max_lines=12", context=128, batch_tokens=256, steps=1)
    source = TextSource(prepare(config.data, show=False))
    batches, validation = source.training(config), source.validation(config)
    assert batches.whole
    assert validation.whole
    assert bytes(batches.batch(0).inputs[0, :2].tolist()).decode()[1] == "="
    assert not source.training(replace(config, rows="stream")).whole
    run_training(config, tmp_path / "run")


def test_a_refused_resume_changes_nothing(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_training(tiny, tmp_path / "run")
    before = (run / "train.json").read_text()
    config = read_manifest(Run(run)).config
    with refuses("it is at step 12 of 10; pass a larger --steps"):
        run_training(replace(config, steps=10), run, resume=True)
    broken = types.ModuleType("wandb")
    monkeypatch.setitem(sys.modules, "wandb", broken)  # has no `init`, as a wandb that is not set up
    with refuses("wandb does not start .* set it up, or drop --track"):
        run_training(replace(config, steps=14, track=("wandb",)), run, resume=True)
    with refuses("wandb does not start"):
        run_training(replace(tiny, track=("wandb",)), tmp_path / "new")
    assert (run / "train.json").read_text() == before
    run_training(replace(tiny, steps=1), tmp_path / "new")


def test_a_copied_run_resumes(tiny: TrainConfig, tmp_path: Path) -> None:
    """A copy that follows links contains files and folders in their place."""
    run = run_training(tiny, tmp_path / "run")
    shutil.copytree(run, tmp_path / "copy", symlinks=False)
    run_training(replace(read_manifest(Run(run)).config, steps=14), tmp_path / "copy", resume=True)
    assert (tmp_path / "copy" / "model.safetensors").is_symlink()
    ours, newest = keysift.load(tmp_path / "copy"), keysift.load(tmp_path / "copy" / "checkpoints" / "step-00000014")
    assert distance(ours, newest) == 0
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    with refuses("already holds config.json; a run needs an empty folder"):
        run_training(tiny, tmp_path / "foreign")


@pytest.mark.parametrize(
    "name",
    [
        *("notes.txt", ".git/HEAD", "checkpoints/step-00000005/own", "checkpoints/.git/HEAD", "checkpoints/last/own"),
        *("diagnosis.json", "metrics.jsonl", "samples/own.txt", "environment.json"),
    ],
)
def test_a_folder_with_other_files_is_refused_and_not_changed(tiny: TrainConfig, tmp_path: Path, name: str) -> None:
    file = tmp_path / "own" / name
    file.parent.mkdir(parents=True)
    file.write_text("own")
    with refuses("already holds .*; a run needs an empty folder, choose another --out"):
        run_training(tiny, tmp_path / "own")
    assert [path for path in (tmp_path / "own").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "own"


def test_a_run_continues_if_its_corpus_is_deleted(tiny: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    copy = build_corpus(str(corpus), "bytes", tmp_path / "corpus", show=False).path

    def purge(line: dict[str, Any]) -> None:
        shutil.rmtree(copy, ignore_errors=True)

    run = run_training(replace(tiny, data=str(copy)), tmp_path / "run", on_step=purge)
    assert layout.checkpoint_steps(run / "checkpoints")[-1] == 12


def test_different_text_on_another_rank_is_refused(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "same_on_all_ranks", lambda self, value: False)
    with refuses("is not the same text on every rank"):
        run_training(tiny, tmp_path / "run")


def test_tensorboard_receives_the_metrics(tiny: TrainConfig, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = run_training(replace(tiny, track=("tensorboard",)), tmp_path / "run")
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses(run))
    assert [event.step for event in events.Scalars("val_loss")] == [4, 8, 12]


def test_a_full_disk_between_checkpoints(tiny: TrainConfig, tmp_path: Path) -> None:
    def raise_disk_full(line: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    with refuses("writing in .* failed .*No space left on device.*keysift train --resume"):
        run_training(tiny, tmp_path / "run", on_step=raise_disk_full)


def test_folders_removed_during_the_search_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running process may remove checkpoints during the search. Checkpoint folders are not searched."""
    for name in ("a", "a/checkpoints/step-1", "b", "c/gone"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / layout.TRAIN).touch()
    is_run_directory = layout.is_run_directory

    def removing(path: Path) -> bool:
        if path.name == "c":
            shutil.rmtree(path / "gone")
        return is_run_directory(path)

    monkeypatch.setattr(summaries, "is_run_directory", removing)
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b"]
