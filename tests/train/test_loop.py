"""The loop in this process: what it writes, that it learns, that it goes on exactly where it stopped."""

import json
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.shards import build as build_corpus
from keysift.data.shards import prepare
from keysift.data.tokenizer import load_tokenizer
from keysift.nn.tile import Tiles
from keysift.train import layout, look
from keysift.train.build import build, model_config
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.loop import train
from keysift.train.metrics import read
from keysift.train.run import Run
from keysift.train.setup import streams
from keysift.train.summary import summary
from tests.refusals import refuses


def losses(run: Path) -> list[float]:
    lines = list(read(run / "metrics.jsonl"))
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "each step once"
    return [line["loss"] for line in lines]


def go(config: TrainConfig | None, run: Path, **rest: Any) -> Path:
    train(config, run, show=False, **rest)
    return run


def distance(left: torch.nn.Module, right: torch.nn.Module) -> float:
    with torch.no_grad():
        return sum(float((a - b).abs().sum()) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def test_a_run_directory(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    facts = Run(run).facts()
    assert facts.config.rate == 2**-4, "the config is resolved"
    assert len(facts.stream) == 64
    session = json.loads((run / "environment.json").read_text())[0]
    assert session["versions"]["torch"] == torch.__version__
    assert session["processes"] == 1
    lines = list(read(run / "metrics.jsonl"))
    assert len(lines) == 12
    for line in lines:
        assert line["tokens"] == line["step"] * 64
        assert line["bits_per_byte"] == pytest.approx(line["loss"] / 0.6931472 / facts.bytes_per_token)
        assert 0 <= line["data_wait_share"] < 1
        assert 0 < line["share_of_peak"] < 1
        assert line["memory_bytes"] > 2**20
    assert [line["step"] for line in lines if "val_loss" in line] == [4, 8, 12]
    layer = lines[-1]["heads"][0]
    assert len(layer["window"]) == len(layer["acceptance"]) == len(layer["accepted"]) == 2
    assert all(0 <= share <= 1 for share in layer["accepted"])
    looked = [layer for line in lines for layer in line.get("heads", [])]
    assert any(share > 0 for layer in looked for share in layer["accepted"])
    assert sorted(path.name for path in (run / "samples").iterdir()) == [f"step-{n:08d}.txt" for n in (4, 8, 12)]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5, "it learns"


def test_the_folder_and_every_checkpoint_load(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    newest = keysift.load(run / "checkpoints" / "step-00000012")
    for path in (run, run / "checkpoints" / "last"):
        model = keysift.load(path)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), newest.parameters(), strict=True))
        assert load_tokenizer(path).vocab_size == 257


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"arch": "transformer", "psi": None, "depth": 1, "heads": 2, "width": 8},
        {"ema": 0.9, "isolate": True, "schedule": "cosine"},
        {"recompute": True, "clip": 0.1},
    ],
    ids=["multiscreen", "transformer", "ema and isolation", "recomputed and clipped"],
)
def test_resumed_is_uninterrupted(tiny: TrainConfig, tmp_path: Path, fields: dict[str, Any]) -> None:
    config = replace(tiny, **fields)
    whole = go(config, tmp_path / "whole")
    stopped = tmp_path / "stopped"

    class Tired(Exception):
        pass

    def leave(line: dict[str, Any]) -> None:
        if line["step"] == 6:
            raise Tired

    with pytest.raises(Tired):
        go(config, stopped, on_step=leave)
    assert len(losses(stopped)) == 6, "two steps beyond the checkpoint"
    go(None, stopped, resume=True)
    assert losses(stopped) == losses(whole)
    ours, theirs = keysift.load(stopped).state_dict(), keysift.load(whole).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    "fields",
    [{"rate": 1e-3}, {"arch": "transformer", "psi": None, "depth": 1, "heads": 2, "width": 8, "clip": 0.1}],
    ids=["multiscreen", "transformer"],
)
def test_the_loop_is_plain_training(tiny: TrainConfig, tmp_path: Path, fields: dict[str, Any]) -> None:
    """What anybody would write by hand, in one turn a step: the loop adds nothing to it and forgets nothing."""
    run = go(replace(tiny, warmup=4, **fields), tmp_path / "run")
    config = Run(run).facts().config
    corpus = prepare(config.data, config.tokenizer)
    batches, _ = streams(corpus, config)
    model = build(model_config(config, 257), torch.Generator().manual_seed(config.seed))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    made = []
    for step in range(12):
        for group in optimizer.param_groups:
            group["lr"] = (config.rate or 0) * min(1.0, (step + 1) / 4)
        batch = batches.batch(step)
        loss = torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or torch.inf)
        optimizer.step()
        made.append((loss.item(), norm.item()))
    lines = list(read(run / "metrics.jsonl"))
    assert [line["loss"] for line in lines] == pytest.approx([loss for loss, _ in made], abs=1e-5)
    assert [line["gradient_norm"] for line in lines] == pytest.approx([norm for _, norm in made], rel=1e-3)


def test_one_seed_one_run(tiny: TrainConfig, tmp_path: Path) -> None:
    first = losses(go(tiny, tmp_path / "first"))
    assert losses(go(tiny, tmp_path / "second")) == first
    assert losses(go(replace(tiny, seed=1), tmp_path / "third")) != first


def test_validation_is_of_held_out_text(tiny: TrainConfig, tmp_path: Path) -> None:
    """At a rate of nothing, the loss is that of the first weights on the held-out documents and no others."""
    config = replace(tiny, rate=1e-30, val_fraction=0.2, val_sequences=10_000)
    run = go(config, tmp_path / "run")
    told = Run(run).facts().config
    corpus = prepare(told.data, told.tokenizer)
    held_out = corpus.split("val", 0.2)
    model = keysift.load(run)
    T = told.context
    rows = [torch.from_numpy(held_out.read(i, i + T + 1).astype("int64")) for i in range(0, held_out.tokens - T, T)]
    tokens = torch.stack(rows)
    with torch.no_grad():
        nats = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    seen = [line["val_loss"] for line in read(run / "metrics.jsonl") if "val_loss" in line]
    assert seen == pytest.approx([nats.item()] * 3, abs=2e-3), "what is left of the last turn may be read twice"


def test_accumulation_changes_rounding_only(tiny: TrainConfig, tmp_path: Path) -> None:
    slow = replace(tiny, rate=1e-3)
    once = losses(go(replace(slow, micro_tokens=64), tmp_path / "once"))
    assert losses(go(replace(slow, micro_tokens=16), tmp_path / "four")) == pytest.approx(once, abs=1e-5)


def test_switches_matter(tiny: TrainConfig, tmp_path: Path) -> None:
    """Each changes the losses, or, where it must not, leaves them as they are."""
    base = losses(go(tiny, tmp_path / "base"))
    for number, fields in enumerate(
        [{"clip": 0.01}, {"weight_decay": 0.5}, {"beta2": 0.5}, {"beta1": 0.5}, {"warmup": 6}, {"isolate": True}]
    ):
        assert losses(go(replace(tiny, **fields), tmp_path / str(number))) != base, fields
    same = losses(go(replace(tiny, recompute=True), tmp_path / "recomputed"))
    assert same == pytest.approx(base, abs=1e-5)
    bf16 = losses(go(replace(tiny, precision="bf16"), tmp_path / "bf16"))
    assert bf16 != base
    assert bf16[0] == pytest.approx(base[0], abs=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # inductor's own
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_changes_rounding_only(tiny: TrainConfig, tmp_path: Path) -> None:
    slow = replace(tiny, rate=1e-3, steps=4)
    compiled = losses(go(replace(slow, compile=True), tmp_path / "compiled"))
    assert compiled == pytest.approx(losses(go(slow, tmp_path / "eager")), abs=1e-5)


def test_retention(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, every=2, keep_last=1, keep_every=6, keep_best=False), tmp_path / "run")
    assert layout.steps(run / "checkpoints") == [6, 12]
    rising = replace(tiny, every=2, keep_last=1, rate=8.0, warmup=0)
    run = go(rising, tmp_path / "rising")
    values = {line["step"]: line["val_loss"] for line in read(run / "metrics.jsonl") if "val_loss" in line}
    best = min(values, key=lambda step: values[step])
    assert layout.steps(run / "checkpoints") == sorted({best, 12})


def test_ema_is_what_is_saved(tiny: TrainConfig, tmp_path: Path) -> None:
    plain = keysift.load(go(tiny, tmp_path / "plain"))
    average = keysift.load(go(replace(tiny, ema=0.99), tmp_path / "ema"))
    start = keysift.load(go(replace(tiny, steps=1), tmp_path / "start"))
    far, near = distance(plain, start), distance(average, start)
    assert 0 < near < 0.5 * far, "the average trails behind the weights"
    assert losses(tmp_path / "plain") == losses(tmp_path / "ema"), "and does not touch them"


def test_minutes_end_a_run_and_a_resumed_session_counts_anew(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, steps=None, minutes=0.001), tmp_path / "run")
    before = len(losses(run))
    go(None, run, resume=True)
    assert len(losses(run)) > before


def test_refusals(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    with refuses("already holds a run; go on with keysift train --resume"):
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


def test_one_trainer_at_a_time(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    other = Run(run)
    other.lock()
    try:
        with refuses("another process is training in"):
            go(replace(Run(run).facts().config, steps=14), run, resume=True)
    finally:
        other.unlock()
    go(replace(Run(run).facts().config, steps=14), run, resume=True)
    assert len(losses(run)) == 14


def test_other_text_is_refused(tiny: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for name in ("00.txt", "01.txt", "02.txt"):
        (text / name).write_text((corpus / name).read_text())
    run = go(replace(tiny, data=str(text), val_fraction=0.3), tmp_path / "run")
    (text / "00.txt").write_text("something else " * 50)
    with refuses("is not what .* was trained on: its token stream has another hash"):
        go(replace(Run(run).facts().config, steps=14), run, resume=True)


SMALL = {"arch": "transformer", "psi": None, "depth": 1, "heads": 1, "width": 8, "every": 3, "sample_tokens": 0}


def test_a_loss_that_is_no_number(tiny: TrainConfig, tmp_path: Path) -> None:
    """And the way out: the last good checkpoint goes on with a lower rate, and the record keeps both."""
    run = go(replace(tiny, **SMALL, warmup=0, rate=1e-3, clip=0.0, steps=3), tmp_path / "run")
    before = losses(run)
    with refuses("first seen in .*diagnosis.json has the details; step-00000003 is whole: go on from it with .*--rate"):
        go(replace(Run(run).facts().config, steps=9, rate=1e30), run, resume=True)
    assert summary(run).state == "diverged"
    told = json.loads((run / "diagnosis.json").read_text())
    assert told["step"] == len(losses(run)) + 1
    assert told["rate"] == 1e30
    assert len(told["sequences"]) == 4
    assert told["first_output"] or told["first_parameter"] or told["first_gradient"]
    assert told["last_good_checkpoint"] == "step-00000003"
    go(replace(Run(run).facts().config, rate=1e-6), run, resume=True)
    assert summary(run).state == "finished"
    assert losses(run)[:3] == before
    sessions = json.loads((run / "environment.json").read_text())
    assert [session["config"]["rate"] for session in sessions] == [1e-3, 1e30, 1e-6]


def test_broken_weights_are_never_saved(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a step is that of the weights before it: what the step leaves is looked at before it is kept."""
    with refuses("the validation loss is nan, first seen in .*; there is no checkpoint yet: start anew"):
        go(replace(tiny, every=1, warmup=0, rate=1e30), tmp_path / "loss")
    step = torch.optim.AdamW.step

    def break_one(self: torch.optim.AdamW, closure: None = None) -> None:
        step(self, closure)
        self.param_groups[0]["params"][0].data[0] = torch.inf

    monkeypatch.setattr(torch.optim.AdamW, "step", break_one)
    with refuses("step 1 left weights that are no numbers, first seen in embedding.weight"):
        go(replace(tiny, every=1), tmp_path / "weights")
    assert layout.steps(tmp_path / "weights" / "checkpoints") == []


def test_a_run_at_work_is_called_running(tiny: TrainConfig, tmp_path: Path) -> None:
    seen = set()
    run = go(tiny, tmp_path / "run", on_step=lambda line: seen.add(summary(tmp_path / "run").state))
    assert seen == {"running"}
    assert summary(run).state == "finished"
    assert summary(run).saved == 12


def test_a_run_on_a_built_corpus_goes_on_with_its_tokenizer(tiny: TrainConfig, tmp_path: Path) -> None:
    build_corpus(tiny.data, "bpe:300", tmp_path / "corpus", show=False)
    run = go(replace(tiny, data=str(tmp_path / "corpus"), steps=4), tmp_path / "run")
    go(replace(Run(run).facts().config, steps=6), run, resume=True)
    assert len(losses(run)) == 6
    assert load_tokenizer(run).vocab_size == 300
    lines = [line for line in read(run / "metrics.jsonl") if "val_loss" in line]
    held_out = prepare(str(tmp_path / "corpus")).split("val", tiny.val_fraction)
    for line in lines:
        assert line["val_bits_per_byte"] == pytest.approx(line["val_loss"] / 0.6931472 / held_out.bytes_per_token)


def test_generated_tasks_are_read_whole(tiny: TrainConfig, tmp_path: Path) -> None:
    """A needle and its question in one sequence: each begins with a document."""
    config = replace(tiny, data="abcdigits:documents=60,max_lines=12", context=128, batch_tokens=256, steps=1)
    batches, validation = streams(prepare(config.data, show=False), config)
    assert batches.whole
    assert validation.whole
    assert bytes(batches.batch(0).inputs[0, :2].tolist()).decode()[1] == "="
    assert not streams(prepare(config.data), replace(config, rows="stream"))[0].whole
    go(config, tmp_path / "run")


def test_a_refused_resume_changes_nothing(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = go(tiny, tmp_path / "run")
    before = (run / "train.json").read_text()
    config = Run(run).facts().config
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
    go(replace(Run(run).facts().config, steps=14), tmp_path / "copy", resume=True)
    assert (tmp_path / "copy" / "model.safetensors").is_symlink()
    ours, newest = keysift.load(tmp_path / "copy"), keysift.load(tmp_path / "copy" / "checkpoints" / "step-00000014")
    assert distance(ours, newest) == 0
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    with refuses("already holds a config.json; choose another --out"):
        go(tiny, tmp_path / "foreign")


def test_a_lost_cache_does_not_lose_the_run(tiny: TrainConfig, corpus: Path, tmp_path: Path) -> None:
    copy = build_corpus(str(corpus), "bytes", tmp_path / "corpus", show=False).path

    def purge(line: dict[str, Any]) -> None:
        shutil.rmtree(copy, ignore_errors=True)

    run = go(replace(tiny, data=str(copy)), tmp_path / "run", on_step=purge)
    assert layout.steps(run / "checkpoints")[-1] == 12


def test_the_turn_that_broke_is_found(tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two turns meets what is no number, in the first layer; gradients carry it to every parameter."""
    forward = Tiles.forward
    first = streams(prepare(tiny.data), tiny)[0].batch(0, 0, 2).inputs

    def breaks(self: Tiles, x_BTD: torch.Tensor, span: Any, store: Any) -> torch.Tensor:
        out = forward(self, x_BTD, span, store)
        return out * torch.nan if self is seen[0] and torch.equal(told[-1], first) else out

    told: list[torch.Tensor] = []
    seen: list[Tiles] = []
    through = keysift.Multiscreen.through

    def listen(self: keysift.Multiscreen, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        told.append(tokens)
        seen[:] = [self.layers[0].tiles]
        return through(self, tokens, *rest)

    monkeypatch.setattr(keysift.Multiscreen, "through", listen)
    monkeypatch.setattr(Tiles, "forward", breaks)
    with refuses("the loss of step 1 is nan .* first seen in layers.0.tiles"):
        go(tiny, tmp_path / "run")


def test_what_is_seen_of_heads_is_bounded(tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "LOOKED_AT", 8)
    model = keysift.Multiscreen(keysift.MultiscreenConfig.psi(2, vocab_size=257)).eval()
    tokens = torch.randint(0, 257, (1, 32))
    assert look.heads(model, tokens) == look.heads(model, tokens[:, :8])


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
