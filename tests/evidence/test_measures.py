"""Measurements of a run: held-out documents, the gain from the context, accuracy by step."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from evidence import held_out
from evidence.measures import GAIN_RATIOS, accuracy_by_step, context_gain, measure
from evidence.study import Grid, Plan
from keysift.evaluate.measured_model import open_measured_model
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.train.config import TrainConfig
from keysift.train.loop import train
from tests.refusals import refuses

TRAINED = 16
PLAN = Plan(grid=(Grid(each=("arch=multiscreen psi=2",)),))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    draw = np.random.default_rng(0)
    for number in range(12):
        (folder / f"{number}.txt").write_bytes(bytes(draw.choice([97, 98, 99], 300).astype(np.uint8)))
    return folder


@pytest.fixture(scope="module", params=[MultiscreenArch.psi(2), TransformerArch(depth=1, heads=2, width=8)])
def text_run(request: pytest.FixtureRequest, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "text"
    sizes = {"context": TRAINED, "batch_tokens": 64, "steps": 2, "val_fraction": 0.4, "sample_tokens": 0}
    train(TrainConfig(model=request.param, data=str(texts), **sizes), out, show=False)
    return out


def test_held_out_documents_are_whole_and_not_trained_on(text_run: Path, texts: Path) -> None:
    documents = held_out.long_documents(text_run, 256, 3)
    split = held_out.validation_split(text_run)
    trained = split.corpus.split("train", 0.4)
    stream = bytes(trained.read(0, trained.tokens).astype(np.uint8))
    files = [path.read_bytes() for path in texts.iterdir()]
    assert len(documents) == 3
    for ids in documents:
        text = bytes(ids[:300].astype(np.uint8))
        assert text in files
        assert text not in stream
    with refuses("no document of more than 10000 tokens"):
        held_out.long_documents(text_run, 10_000, 3)
    assert held_out.unigram_entropy(text_run) == pytest.approx(math.log(3), abs=0.05)


def test_gain_from_the_context_reads_the_same_tokens(text_run: Path) -> None:
    run = open_measured_model(str(text_run))
    documents = held_out.long_documents(text_run, GAIN_RATIOS[-1] * TRAINED, 2)
    points = {(point["ratio"], point["setting"]): point for point in context_gain(run, documents)}
    at = 4 * TRAINED
    full, cut = [], []
    for ids in documents:
        tokens = torch.from_numpy(ids)[None]
        for losses, start in ((full, 0), (cut, at - TRAINED)):
            with torch.no_grad():
                logits = run.model(tokens[:, start:at])[0]
            nats = F.cross_entropy(logits.float(), tokens[0, start + 1 : at + 1], reduction="none")
            losses.append(nats[-TRAINED // 2 :])
    point = points[4, "as trained"]
    assert point["nats"] == pytest.approx(float(torch.cat(full).mean()), rel=1e-4)
    assert point["cut_nats"] == pytest.approx(float(torch.cat(cut).mean()), rel=1e-4)
    assert point["documents"] == 2
    assert points[1, "as trained"]["nats"] == points[1, "as trained"]["cut_nats"]
    settings = {setting for _, setting in points}
    is_multiscreen = isinstance(run.model.config, MultiscreenArch)
    assert settings == {"as trained", *(["windows expanded"] if is_multiscreen else ["RoPE scaled", "YaRN"])}


def test_accepted_keys_are_counted_for_every_tile(text_run: Path) -> None:
    layers = measure(text_run, PLAN, ["windows", "unigram"])["windows"]
    if isinstance(open_measured_model(str(text_run)).model.config, TransformerArch):
        assert layers == []
        return
    assert len(layers) == 2
    for layer in layers:
        assert len(layer["accepted_keys"]) == len(layer["windows"]) == len(layer["acceptances"]) == 2
        assert layer["tokens"] == 4 * TRAINED
        assert all(0 <= keys <= (layer["tokens"] + 1) / 2 for keys in layer["accepted_keys"])


def test_accuracy_by_step(tmp_path: Path) -> None:
    recall = {"data": "recall:letters=4,values=2,queries=2", "context": 8, "batch_tokens": 64, "val_sequences": 8}
    train(TrainConfig(model=MultiscreenArch.psi(2), steps=4, save_every=2, **recall), tmp_path / "run", show=False)
    points = accuracy_by_step(tmp_path / "run")
    assert [(point["step"], point["tokens"]) for point in points] == [(2, 128), (4, 256)]
    assert all(0 <= point["accuracy"] <= 1 for point in points)
    assert measure(tmp_path / "run", PLAN, ["accuracy_by_step"]) == {"accuracy_by_step": points}
