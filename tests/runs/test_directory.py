"""A run directory among others: claimed, kept, copied, refused, listed."""

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
from keysift.data.tokenizer import load_tokenizer
from keysift.runs import layout
from keysift.runs import summary as summaries
from keysift.runs.checkpoint import point
from keysift.runs.directory import Run
from keysift.runs.metrics import read
from keysift.runs.summary import find_runs, summary
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.facts import read_facts
from keysift.train.source import Text
from tests.refusals import refuses
from tests.runs.written import falling, write_run
from tests.train.in_process import distance, go, losses

pytestmark = pytest.mark.slow  # every test trains


def test_retention(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, save_every=2, keep_last=1, keep_every=6, keep_best=False), tmp_path / "run")
    assert layout.steps(run / "checkpoints") == [6, 12]
    rising = replace(tiny, save_every=2, keep_last=1, lr=8.0, warmup=0)
    run = go(rising, tmp_path / "rising")
    values = {line["step"]: line["val_loss"] for line in read(run / "metrics.jsonl") if "val_loss" in line}
    best = min(values, key=lambda step: values[step])
    assert layout.steps(run / "checkpoints") == sorted({best, 12})


def test_minutes_end_a_run_and_a_resumed_session_counts_anew(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, steps=None, minutes=0.001), tmp_path / "run")
    before = len(losses(run))
    assert summary(run).state == "time over"
    go(None, run, resume=True)
    assert len(losses(run)) > before
    assert summary(run).state == "time over"


@pytest.mark.parametrize("text", ["{", "{}", "[3]", "[" * 100_000], ids=["torn", "object", "number", "deep"])
def test_a_damaged_list_of_sessions_is_named(tiny: TrainConfig, tmp_path: Path, text: str) -> None:
    run = go(tiny, tmp_path / "run")
    before = (run / "train.json").read_text()
    (run / "environment.json").write_text(text)
    assert summary(run).state == "finished", "a list of runs does not mind"
    with refuses("environment.json is not .*; move it away to resume the run"):
        go(replace(read_facts(Run(run)).config, steps=14), run, resume=True)
    assert (run / "train.json").read_text() == before


def test_refusals(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    with refuses("already holds a run; resume it with keysift train --resume"):
        go(tiny, run)
    with refuses("is finished: it has made 12 steps, 12 were asked for; pass more --steps"):
        go(None, run, resume=True)
    with refuses("a new run needs a config"):
        go(None, tmp_path / "other")
    with refuses("holds no run: train.json is missing"):
        go(None, tmp_path / "other", resume=True)
    with refuses("strategy ddp needs torchrun"):
        go(replace(tiny, strategy="ddp"), tmp_path / "alone")
    with refuses("device 'cuda:7' cannot be used here"):
        go(replace(tiny, device="cuda:7"), tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with refuses("cannot be written"):
        go(tiny, tmp_path / "file" / "run")
    (run / "train.json").write_text("{")
    with refuses("train.json is not JSON"):
        go(None, run, resume=True)
    for text in ("{}", "[]", '{"config": 3}', '{"config": {}}'):
        (run / "train.json").write_text(text)
        with refuses("train.json does not describe a run|needs 'stream'"):
            go(None, run, resume=True)
    (run / "train.json").write_text('{"config": {"arch": 3, "data": "x", "steps": 1}, "parameters": 1}')
    with refuses(r"does not describe a run \(arch, data or steps\)"):
        summary(run)


def test_one_trainer_at_a_time(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    other = Run(run)
    other.lock()
    try:
        with refuses("another process is training in"):
            go(replace(read_facts(Run(run)).config, steps=14), run, resume=True)
    finally:
        other.unlock()
    go(replace(read_facts(Run(run)).config, steps=14), run, resume=True)
    assert len(losses(run)) == 14


def test_other_text_is_refused(tiny: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("00.txt", "01.txt", "02.txt"):
        (text / name).write_text((corpus / name).read_text())
    run = go(replace(tiny, data=str(text), val_fraction=0.3), tmp_path / "run")
    (text / "00.txt").write_text("something else " * 50)
    with refuses("is not what .* was trained on: its token stream has another hash"):
        go(replace(read_facts(Run(run)).config, steps=14), run, resume=True)


def test_a_run_at_work_is_called_running(tiny: TrainConfig, tmp_path: Path) -> None:
    seen = set()
    run = go(tiny, tmp_path / "run", on_step=lambda line: seen.add(summary(tmp_path / "run").state))
    assert seen == {"running"}
    assert summary(run).state == "finished"
    assert summary(run).saved == 12


def test_a_checkpoint_counts_once_the_run_leads_to_it(tmp_path: Path) -> None:
    """Killed between the last checkpoint and the link to it: what is told of the run is of the model it loads."""
    run, checkpoints = tmp_path / "run", tmp_path / "run" / layout.CHECKPOINTS
    write_run(run, falling(1.0))
    shutil.copytree(checkpoints / layout.name_of(40), checkpoints / layout.name_of(20))
    point(checkpoints, layout.name_of(20))
    assert (summary(run).state, summary(run).saved) == ("stopped", 20)
    Run(run).recover()
    assert (summary(run).state, summary(run).saved) == ("finished", 40)
    shutil.rmtree(checkpoints / layout.name_of(40))
    assert summary(run).saved == 20, "a link that leads nowhere says nothing"


def test_a_run_on_a_built_corpus_goes_on_with_its_tokenizer(tiny: TrainConfig, tmp_path: Path) -> None:
    build_corpus(tiny.data, "bpe:300", tmp_path / "corpus", show=False)
    run = go(replace(tiny, data=str(tmp_path / "corpus"), steps=4), tmp_path / "run")
    go(replace(read_facts(Run(run)).config, steps=6), run, resume=True)
    assert len(losses(run)) == 6
    assert load_tokenizer(run).vocab_size == 300
    lines = [line for line in read(run / "metrics.jsonl") if "val_loss" in line]
    held_out = prepare(str(tmp_path / "corpus")).split("val", tiny.val_fraction)
    for line in lines:
        assert line["val_bits_per_byte"] == pytest.approx(line["val_loss"] / 0.6931472 / held_out.bytes_per_token)


def test_generated_tasks_are_read_whole(tiny: TrainConfig, tmp_path: Path) -> None:
    """A needle and its question in one sequence: each begins with a document."""
    config = replace(tiny, data="abcdigits:documents=60,max_lines=12", context=128, batch_tokens=256, steps=1)
    source = Text(prepare(config.data, show=False))
    batches, validation = source.training(config), source.validation(config)
    assert batches.whole
    assert validation.whole
    assert bytes(batches.batch(0).inputs[0, :2].tolist()).decode()[1] == "="
    assert not source.training(replace(config, rows="stream")).whole
    go(config, tmp_path / "run")


def test_a_refused_resume_changes_nothing(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go(tiny, tmp_path / "run")
    before = (run / "train.json").read_text()
    config = read_facts(Run(run)).config
    with refuses("it has made 12 steps, 10 were asked for"):
        go(replace(config, steps=10), run, resume=True)
    broken = types.ModuleType("wandb")
    monkeypatch.setitem(sys.modules, "wandb", broken)  # as one without a login
    with refuses("wandb does not start .* set it up, or drop --track"):
        go(replace(config, steps=14, track=("wandb",)), run, resume=True)
    with refuses("wandb does not start"):
        go(replace(tiny, track=("wandb",)), tmp_path / "new")
    assert (run / "train.json").read_text() == before
    go(replace(tiny, steps=1), tmp_path / "new")


def test_a_copied_run_goes_on(tiny: TrainConfig, tmp_path: Path) -> None:
    """Copies that follow links make files and folders of them."""
    run = go(tiny, tmp_path / "run")
    shutil.copytree(run, tmp_path / "copy", symlinks=False)
    go(replace(read_facts(Run(run)).config, steps=14), tmp_path / "copy", resume=True)
    assert (tmp_path / "copy" / "model.safetensors").is_symlink()
    ours, newest = keysift.load(tmp_path / "copy"), keysift.load(tmp_path / "copy" / "checkpoints" / "step-00000014")
    assert distance(ours, newest) == 0
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    with refuses("already holds config.json; a run needs a folder of its own"):
        go(tiny, tmp_path / "foreign")


@pytest.mark.parametrize(
    "name",
    [
        *("notes.txt", ".git/HEAD", "checkpoints/step-00000005/mine", "checkpoints/.git/HEAD", "checkpoints/last/mine"),
        *("diagnosis.json", "metrics.jsonl", "samples/mine.txt", "environment.json"),
    ],
)
def test_a_folder_that_holds_anything_else_is_refused_and_left_alone(
    tiny: TrainConfig, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with refuses("already holds .*; a run needs a folder of its own, choose another --out"):
        go(tiny, tmp_path / "mine")
    assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"


def test_a_lost_cache_does_not_lose_the_run(tiny: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    copy = build_corpus(str(corpus), "bytes", tmp_path / "corpus", show=False).path

    def purge(line: dict[str, Any]) -> None:
        shutil.rmtree(copy, ignore_errors=True)

    run = go(replace(tiny, data=str(copy)), tmp_path / "run", on_step=purge)
    assert layout.steps(run / "checkpoints")[-1] == 12


def test_other_text_in_another_process_is_refused(
    tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "alike", lambda self, value: False)
    with refuses("is not the same text for every process"):
        go(tiny, tmp_path / "run")


def test_tensorboard_gets_every_number(tiny: TrainConfig, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = go(replace(tiny, track=("tensorboard",)), tmp_path / "run")
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses(run))
    assert [event.step for event in events.Scalars("val_loss")] == [4, 8, 12]


def test_a_disk_that_fails_between_checkpoints(tiny: TrainConfig, tmp_path: Path) -> None:
    def full(line: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    with refuses("writing in .* failed .*No space left on device.*keysift train --resume"):
        go(tiny, tmp_path / "run", on_step=full)


def test_what_goes_while_runs_are_looked_for_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a run at work that removes old checkpoints; a checkpoint is no place to look for runs either."""
    for name in ("a", "a/checkpoints/step-1", "b", "c/gone"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / layout.TRAIN).touch()
    real = layout.holds_a_run

    def removing(path: Path) -> bool:
        if path.name == "c":
            shutil.rmtree(path / "gone")
        return real(path)

    monkeypatch.setattr(summaries, "holds_a_run", removing)
    assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "b"]
