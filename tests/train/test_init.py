"""Starting from the weights of another model: what is taken over, what begins anew, what is refused, and resuming."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.data.recall import Recall
from keysift.data.symbols import of_recall
from keysift.data.tokenizer import Bytes
from keysift.models.arch import TransformerArch
from keysift.models.kinds import build, configure
from keysift.models.save import save
from keysift.runs.directory import Run
from keysift.train.config import TrainConfig
from keysift.train.config_file import read_toml
from keysift.train.facts import read_facts
from keysift.train.init import adopt, find_origin, starting_from
from keysift.train.loop import train
from tests.refusals import refuses

ARCH = TransformerArch(depth=2, heads=2, width=8, mechanism="softmax_sink", qk_norm=True, final_gain=True)
TOKENS = torch.tensor([[1, 5, 9, 200, 256, 3]])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model with a vocabulary beyond its tokenizer's, every parameter away from its start."""
    path = tmp_path / "source"
    model = build(configure(ARCH, vocab_size=260, context=16), torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    save(model, path)
    Bytes().save(path)
    return path


def begun(config: TrainConfig) -> tuple[keysift.models.language.LanguageModel, list[str]]:
    origin = find_origin(config, Bytes())
    assert origin is not None
    model = build(configure(config.model, vocab_size=origin.vocab_size, context=config.context))
    return model, adopt(model, origin)


def test_the_same_model_begins_where_the_other_ended(source: Path) -> None:
    config = starting_from(source)
    assert config.model == ARCH
    assert (config.context, config.init, config.tokenizer) == (16, str(source), str(source))
    model, fresh = begun(replace(config, context=64, batch_tokens=1024))
    assert fresh == []
    torch.testing.assert_close(model(TOKENS), keysift.load(source)(TOKENS))
    assert model.config.context == 64


def test_another_mechanism_begins_with_its_own_scalars(source: Path) -> None:
    config = starting_from(source)
    kept = keysift.load(source).state_dict()
    model, fresh = begun(replace(config, model=replace(ARCH, mechanism=("ssmax", "softmax_sink"))))
    assert fresh == ["layers.0.attention.scalars.raw_sharpness"]
    found = model.state_dict()
    assert all(torch.equal(found[name], kept[name]) for name in found if name not in fresh)
    plain, fresh = begun(replace(config, model=replace(ARCH, mechanism="softmax")))
    assert fresh == []
    assert not any("scalars" in name for name in plain.state_dict())
    gated, fresh = begun(replace(config, model=replace(ARCH, mechanism="softmax_sink+output_head_gate")))
    assert {name.split(".scalars.")[1].split(".")[0] for name in fresh} == {"raw_sink", "raw_output_head_gate"}
    assert gated(TOKENS).isfinite().all()


def test_refusals(source: Path, tmp_path: Path) -> None:
    config = starting_from(source)
    for change, match in (
        (
            {"hidden_width": 9},
            r"layers.0.mlp.gate_proj.weight is \(21, 8\) there and \(9, 8\) here.*only the mechanism",
        ),
        ({"tied_embeddings": False}, "lm_head.weight is new"),
        ({"qk_norm": False}, "layers.0.attention.q_norm.weight would be lost"),
        ({"depth": 1}, "layers.1.attention_norm.weight would be lost.* and [0-9]+ more"),
    ):
        with refuses(match):
            begun(replace(config, model=replace(ARCH, **change)))
    with refuses("is a transformer, this is a multiscreen; drop --arch"):
        begun(replace(config, model=TrainConfig().model))
    origin = find_origin(config, Bytes())
    assert origin is not None
    with refuses("has changed since the run began, before its first checkpoint"):
        adopt(build(configure(ARCH, vocab_size=260, context=16)), replace(origin, sha256="0"))
    other = tmp_path / "bpe"
    other.mkdir()
    from keysift.data import bpe

    bpe.train(["some text"], 260).save(other)
    with refuses("reads tokens of bytes, and stdlib would be read as bpe:260; leave --tokenizer out"):
        find_origin(config, keysift.data.tokenizer.load_tokenizer(other))


def test_a_file_may_say_where_to_start(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'init = "{source}"\nmechanism = "sigmoid"\nsteps = 3\n')
    config = read_toml(file)
    assert config.model == replace(ARCH, mechanism="sigmoid")
    assert config.init == str(source)
    file.write_text("steps = 4\n")
    assert replace(read_toml(file, source), steps=None) == starting_from(source)


@pytest.fixture
def recalling(tmp_path: Path) -> TrainConfig:
    """What a run starts from that begins with a model of recall."""
    task, path = Recall(letters=4, values=2, queries=2), tmp_path / "recalling"
    save(build(configure(ARCH, vocab_size=task.tokenizer.vocab_size, context=16)), path)
    task.tokenizer.save(path)
    return replace(starting_from(path), batch_tokens=32, steps=2)


def test_a_model_of_recall_learns_on(recalling: TrainConfig, tmp_path: Path) -> None:
    config = replace(recalling, data="recall:letters=4,values=2,queries=2")
    train(config, tmp_path / "run", show=False)
    facts = read_facts(Run(tmp_path / "run"))
    assert facts.origin == find_origin(config, of_recall(hops=1, letters=4, values=2))
    train(replace(facts.config, steps=3), tmp_path / "run", resume=True, show=False)


def test_recall_of_other_symbols_is_refused(recalling: TrainConfig, source: Path, tmp_path: Path) -> None:
    with refuses(
        "reads tokens of recall:hops=1,letters=4,values=2, and recall:letters=8 would be read as "
        "recall:hops=1,letters=8,values=16; say --data recall:hops=1,letters=4,values=2, or start without --init"
    ):
        train(replace(recalling, data="recall:letters=8"), tmp_path / "run", show=False)
    with refuses(
        "reads tokens of bytes, and recall:queries=2 would be read as recall:.*; say --data with a text, or start"
    ):
        train(replace(starting_from(source), data="recall:queries=2", steps=2), tmp_path / "run", show=False)
    with refuses("recall makes its own rows, so tokenizer changes nothing; leave it out"):
        train(replace(recalling, data="recall", tokenizer="bytes"), tmp_path / "run", show=False)


@pytest.mark.slow
def test_a_run_from_other_weights_resumes_exactly(source: Path, tmp_path: Path) -> None:
    """The stop in the middle changes nothing; the hash of where it came from is kept, and the source is not needed."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the cat number {n} sat on the mat and looked at the other cat\n\n" for n in range(80)))
    config = replace(
        starting_from(source),
        model=replace(ARCH, mechanism=("ssmax", "softmax_sink")),
        data=str(text),
        batch_tokens=32,
        save_every=2,
        lr=1e-3,
        warmup=0,
        sample_tokens=0,
        steps=4,
    )
    whole = train(config, tmp_path / "whole", show=False)
    train(replace(config, steps=2), tmp_path / "halves", show=False)
    facts = read_facts(Run(tmp_path / "halves"))
    assert facts.origin == find_origin(config, Bytes())
    assert json.loads((tmp_path / "halves" / "train.json").read_text())["origin"]["vocab_size"] == 260
    (source / "model.safetensors").unlink()
    halves = train(replace(facts.config, steps=4), tmp_path / "halves", resume=True, show=False)
    a, b = keysift.load(whole).state_dict(), keysift.load(halves).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["embedding.weight"], build(keysift.load(whole).config).embedding.weight)
