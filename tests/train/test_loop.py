"""The training loop: files of a run, decreasing loss, exact resume, options."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.shards import prepare
from keysift.data.tokenizers.load import load_tokenizer
from keysift.models.architecture import TransformerArch
from keysift.models.registry import build
from keysift.runs.directory import Run
from keysift.runs.metrics import read
from keysift.train.config import TrainConfig
from keysift.train.init import model_config
from keysift.train.manifest import read_manifest
from keysift.train.source import TextSource
from tests.train.in_process import distance, losses, run_training


def test_contents_of_a_run_directory(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(tiny, tmp_path / "run")
    manifest = read_manifest(Run(run))
    assert manifest.config.lr == 2**-4, "the config is resolved"
    assert len(manifest.stream) == 64
    session = json.loads((run / "environment.json").read_text())[0]
    assert session["machine"]["torch"] == torch.__version__
    assert session["processes"] == 1
    lines = list(read(run / "metrics.jsonl"))
    assert len(lines) == 12
    for line in lines:
        assert line["tokens"] == line["step"] * 64
        assert line["bits_per_byte"] == pytest.approx(line["loss"] / 0.6931472 / manifest.bytes_per_token)
        assert 0 <= line["data_wait_share"] < 1
        assert 0 < line["mfu"] < 1
        assert line["memory_bytes"] > 2**20
    assert [line["step"] for line in lines if "val_loss" in line] == [4, 8, 12]
    heads_by_step = [json.loads((run / "heads" / f"step-{n:08d}.json").read_text()) for n in (4, 8, 12)]
    assert [(head["layer"], head["head"]) for head in heads_by_step[-1]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(head["window"] > 1 and 0 < head["acceptance"] < 1 for head in heads_by_step[-1])
    assert any(head["accepted"] > 0 for heads in heads_by_step for head in heads)
    assert sorted(path.name for path in (run / "samples").iterdir()) == [f"step-{n:08d}.txt" for n in (4, 8, 12)]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5, "the loss decreases"


def test_run_directory_and_checkpoints_load(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(tiny, tmp_path / "run")
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
def test_a_resumed_run_equals_an_uninterrupted_run(tiny: TrainConfig, tmp_path: Path, fields: dict[str, Any]) -> None:
    config = replace(tiny, **fields)
    uninterrupted = run_training(config, tmp_path / "uninterrupted")
    resumed = tmp_path / "resumed"

    class Interrupt(Exception):
        pass

    def interrupt(line: dict[str, Any]) -> None:
        if line["step"] == 6:
            raise Interrupt

    with pytest.raises(Interrupt):
        run_training(config, resumed, on_step=interrupt)
    assert len(losses(resumed)) == 6, "two steps after the checkpoint"
    run_training(None, resumed, resume=True)
    assert losses(resumed) == losses(uninterrupted)
    ours, theirs = keysift.load(resumed).state_dict(), keysift.load(uninterrupted).state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(
    "fields",
    [{"lr": 1e-3}, {"model": TransformerArch(depth=1, heads=2, width=8), "clip": 0.1}],
    ids=["multiscreen", "transformer"],
)
def test_the_loop_matches_a_minimal_loop(tiny: TrainConfig, tmp_path: Path, fields: dict[str, Any]) -> None:
    """Losses and gradient norms equal those of a minimal PyTorch loop without accumulation."""
    run = run_training(replace(tiny, warmup=4, **fields), tmp_path / "run")
    config = read_manifest(Run(run)).config
    batches = TextSource(prepare(config.data, config.tokenizer)).training(config)
    model = build(model_config(config, 257), torch.Generator().manual_seed(config.seed))
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    expected = []
    for step in range(12):
        for group in optimizer.param_groups:
            group["lr"] = (config.lr or 0) * min(1.0, (step + 1) / 4)
        batch = batches.batch(step)
        loss = torch.nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip or torch.inf)
        optimizer.step()
        expected.append((loss.item(), norm.item()))
    lines = list(read(run / "metrics.jsonl"))
    assert [line["loss"] for line in lines] == pytest.approx([loss for loss, _ in expected], abs=1e-5)
    assert [line["gradient_norm"] for line in lines] == pytest.approx([norm for _, norm in expected], rel=1e-3)


def test_the_seed_determines_the_run(tiny: TrainConfig, tmp_path: Path) -> None:
    first = losses(run_training(tiny, tmp_path / "first"))
    assert losses(run_training(tiny, tmp_path / "second")) == first
    assert losses(run_training(replace(tiny, seed=1), tmp_path / "third")) != first


@pytest.mark.slow
def test_validation_uses_held_out_documents(tiny: TrainConfig, tmp_path: Path) -> None:
    """With a learning rate of almost zero, the loss is that of the initial weights on the held-out documents."""
    config = replace(tiny, lr=1e-30, val_fraction=0.2, val_sequences=10_000)
    run = run_training(config, tmp_path / "run")
    resolved = read_manifest(Run(run)).config
    corpus = prepare(resolved.data, resolved.tokenizer)
    held_out = corpus.split("val", 0.2)
    model = keysift.load(run)
    T = resolved.context
    rows = [torch.from_numpy(held_out.read(i, i + T + 1).astype("int64")) for i in range(0, held_out.tokens - T, T)]
    tokens = torch.stack(rows)
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    validation_losses = [line["val_loss"] for line in read(run / "metrics.jsonl") if "val_loss" in line]
    assert validation_losses == pytest.approx([expected.item()] * 3, abs=2e-3), (
        "sequences that fill the last batch may be read twice"
    )


def test_accumulation_changes_rounding_only(tiny: TrainConfig, tmp_path: Path) -> None:
    low_rate = replace(tiny, lr=1e-3)
    single_step = losses(run_training(replace(low_rate, micro_tokens=64), tmp_path / "single"))
    assert losses(run_training(replace(low_rate, micro_tokens=16), tmp_path / "four")) == pytest.approx(
        single_step, abs=1e-5
    )


@pytest.mark.slow
def test_options_change_the_losses(tiny: TrainConfig, tmp_path: Path) -> None:
    """Hyperparameters change the losses; recomputation does not, and bf16 changes them slightly."""
    base = losses(run_training(tiny, tmp_path / "base"))
    for number, fields in enumerate(
        [{"clip": 0.01}, {"weight_decay": 0.5}, {"beta2": 0.5}, {"beta1": 0.5}, {"warmup": 6}, {"isolate": True}]
    ):
        assert losses(run_training(replace(tiny, **fields), tmp_path / str(number))) != base, fields
    same = losses(run_training(replace(tiny, recompute=True), tmp_path / "recomputed"))
    assert same == pytest.approx(base, abs=1e-5)
    bf16 = losses(run_training(replace(tiny, precision="bf16"), tmp_path / "bf16"))
    assert bf16 != base
    assert bf16[0] == pytest.approx(base[0], abs=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # raised inside inductor
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.skipif(" " in torch.__file__, reason="torch.compile cannot link if the path of torch contains a space")
def test_compile_changes_rounding_only(tiny: TrainConfig, tmp_path: Path) -> None:
    low_rate = replace(tiny, lr=1e-3, steps=4)
    compiled = losses(run_training(replace(low_rate, compile=True), tmp_path / "compiled"))
    assert compiled == pytest.approx(losses(run_training(low_rate, tmp_path / "eager")), abs=1e-5)


def test_saved_weights_are_the_ema(tiny: TrainConfig, tmp_path: Path) -> None:
    plain = keysift.load(run_training(tiny, tmp_path / "plain"))
    averaged = keysift.load(run_training(replace(tiny, ema=0.99), tmp_path / "ema"))
    initial = keysift.load(run_training(replace(tiny, steps=1), tmp_path / "start"))
    far, near = distance(plain, initial), distance(averaged, initial)
    assert 0 < near < 0.5 * far, "the average lags behind the weights"
    assert losses(tmp_path / "plain") == losses(tmp_path / "ema"), "the average does not change training"
