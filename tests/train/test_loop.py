"""The loop in this process: what it writes, that it learns, that it goes on exactly where it stopped."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.shards import prepare
from keysift.data.tokenizer import load_tokenizer
from keysift.models.arch import TransformerArch
from keysift.models.kinds import build
from keysift.runs.directory import Run
from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.facts import read_facts
from keysift.train.setup import model_config
from keysift.train.source import Text
from tests.train.in_process import distance, go, losses


def test_a_run_directory(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(tiny, tmp_path / "run")
    facts = read_facts(Run(run))
    assert facts.config.lr == 2**-4, "the config is resolved"
    assert len(facts.stream) == 64
    session = json.loads((run / "environment.json").read_text())[0]
    assert session["machine"]["torch"] == torch.__version__
    assert session["processes"] == 1
    lines = list(read(run / "metrics.jsonl"))
    assert len(lines) == 12
    for line in lines:
        assert line["tokens"] == line["step"] * 64
        assert line["bits_per_byte"] == pytest.approx(line["loss"] / 0.6931472 / facts.bytes_per_token)
        assert 0 <= line["data_wait_share"] < 1
        assert 0 < line["mfu"] < 1
        assert line["memory_bytes"] > 2**20
    assert [line["step"] for line in lines if "val_loss" in line] == [4, 8, 12]
    told = [json.loads((run / "heads" / f"step-{n:08d}.json").read_text()) for n in (4, 8, 12)]
    assert [(head["layer"], head["head"]) for head in told[-1]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(head["window"] > 1 and 0 < head["acceptance"] < 1 for head in told[-1])
    assert any(head["accepted"] > 0 for heads in told for head in heads)
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
        pytest.param({"ema": 0.9, "isolate": True, "schedule": "cosine"}, id="ema and isolation"),
        pytest.param({}, id="multiscreen", marks=pytest.mark.slow),
        pytest.param({"model": TransformerArch(depth=1, heads=2, width=8)}, id="transformer", marks=pytest.mark.slow),
        pytest.param({"recompute": True, "clip": 0.1}, id="recomputed and clipped", marks=pytest.mark.slow),
    ],
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
    [{"lr": 1e-3}, {"model": TransformerArch(depth=1, heads=2, width=8), "clip": 0.1}],
    ids=["multiscreen", "transformer"],
)
def test_the_loop_is_plain_training(tiny: TrainConfig, tmp_path: Path, fields: dict[str, Any]) -> None:
    """What anybody would write by hand, in one turn a step: the loop adds nothing to it and forgets nothing."""
    run = go(replace(tiny, warmup=4, **fields), tmp_path / "run")
    config = read_facts(Run(run)).config
    batches = Text(prepare(config.data, config.tokenizer)).training(config)
    model = build(model_config(config, 257), torch.Generator().manual_seed(config.seed))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    made = []
    for step in range(12):
        for group in optimizer.param_groups:
            group["lr"] = (config.lr or 0) * min(1.0, (step + 1) / 4)
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


@pytest.mark.slow
def test_validation_is_of_held_out_text(tiny: TrainConfig, tmp_path: Path) -> None:
    """At a rate of nothing, the loss is that of the first weights on the held-out documents and no others."""
    config = replace(tiny, lr=1e-30, val_fraction=0.2, val_sequences=10_000)
    run = go(config, tmp_path / "run")
    told = read_facts(Run(run)).config
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
    slow = replace(tiny, lr=1e-3)
    once = losses(go(replace(slow, micro_tokens=64), tmp_path / "once"))
    assert losses(go(replace(slow, micro_tokens=16), tmp_path / "four")) == pytest.approx(once, abs=1e-5)


@pytest.mark.slow
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
@pytest.mark.skipif(" " in torch.__file__, reason="torch.compile cannot link where torch lies in a path with a space")
def test_compiled_changes_rounding_only(tiny: TrainConfig, tmp_path: Path) -> None:
    slow = replace(tiny, lr=1e-3, steps=4)
    compiled = losses(go(replace(slow, compile=True), tmp_path / "compiled"))
    assert compiled == pytest.approx(losses(go(slow, tmp_path / "eager")), abs=1e-5)


def test_ema_is_what_is_saved(tiny: TrainConfig, tmp_path: Path) -> None:
    plain = keysift.load(go(tiny, tmp_path / "plain"))
    average = keysift.load(go(replace(tiny, ema=0.99), tmp_path / "ema"))
    start = keysift.load(go(replace(tiny, steps=1), tmp_path / "start"))
    far, near = distance(plain, start), distance(average, start)
    assert 0 < near < 0.5 * far, "the average trails behind the weights"
    assert losses(tmp_path / "plain") == losses(tmp_path / "ema"), "and does not touch them"
