"""`--init`: copied weights, newly initialized scalars, refused models, and resuming."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.data.shards import prepare
from keysift.data.tasks.recall import Recall
from keysift.data.tokenizers.bytes import Bytes
from keysift.data.tokenizers.symbols import of_recall
from keysift.models.architecture import TransformerArch
from keysift.models.registry import build, configure
from keysift.models.save import save
from keysift.runs.directory import Run
from keysift.runs.layout import HEADS, SAMPLES
from keysift.train.config import TrainConfig
from keysift.train.init import config_from_model, copy_weights, find_origin
from keysift.train.loop import train
from keysift.train.manifest import read_manifest
from keysift.train.monitor import inspect_checkpoint
from keysift.train.settings import read_toml
from keysift.train.source import TextSource
from tests.refusals import refuses

ARCH = TransformerArch(depth=2, heads=2, width=8, mechanism="softmax_sink", qk_norm=True, final_gain=True)
TOKENS = torch.tensor([[1, 5, 9, 200, 256, 3]])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A saved model with a padded vocabulary. Every parameter differs from its initial value."""
    path = tmp_path / "source"
    model = build(configure(ARCH, vocab_size=260, context=16), torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    save(model, path)
    Bytes().save(path)
    return path


def build_initialized(config: TrainConfig) -> tuple[keysift.models.language_model.LanguageModel, list[str]]:
    """Build the model of `config` and copy weights from its `init`. Returns it with the names of new parameters."""
    origin = find_origin(config, Bytes())
    assert origin is not None
    model = build(configure(config.model, vocab_size=origin.vocab_size, context=config.context))
    return model, copy_weights(model, origin)


def test_the_same_architecture_copies_all_weights(source: Path) -> None:
    config = config_from_model(source)
    assert config.model == ARCH
    assert (config.context, config.init, config.tokenizer) == (16, str(source), str(source))
    model, new_names = build_initialized(replace(config, context=64, batch_tokens=1024))
    assert new_names == []
    torch.testing.assert_close(model(TOKENS), keysift.load(source)(TOKENS))
    assert model.config.context == 64


def test_samples_contain_no_padding_tokens(source: Path, corpus: Path, tmp_path: Path) -> None:
    """The model prefers padding tokens, which no tokenizer can decode."""
    model = keysift.load(source)
    direction = torch.randn(ARCH.width, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        model.embedding.weight[258:] = torch.stack([100 * direction, -100 * direction])
    assert (model(TOKENS).argmax(-1) >= Bytes.vocab_size).all()
    config = config_from_model(source)
    text = TextSource(prepare(str(corpus), show=False))
    for folder in (SAMPLES, HEADS):
        (tmp_path / folder).mkdir()
    messages: list[str] = []
    inspect_checkpoint(tmp_path, model, text, TOKENS, replace(config, sample_tokens=30), 5, messages.append)
    assert not [message for message in messages if "failed" in message]
    assert (tmp_path / SAMPLES / "step-00000005.txt").read_text().startswith(text.prompt)
    assert (corpus / "00.txt").read_text().startswith(text.prompt), "the first words of the corpus"
    assert len(text.prompt.split()) == 2


def test_another_mechanism_initializes_its_own_scalars(source: Path) -> None:
    config = config_from_model(source)
    source_weights = keysift.load(source).state_dict()
    model, new_names = build_initialized(replace(config, model=replace(ARCH, mechanism=("ssmax", "softmax_sink"))))
    assert new_names == ["layers.0.attention.scalars.raw_sharpness"]
    weights = model.state_dict()
    assert all(torch.equal(weights[name], source_weights[name]) for name in weights if name not in new_names)
    plain, new_names = build_initialized(replace(config, model=replace(ARCH, mechanism="softmax")))
    assert new_names == []
    assert not any("scalars" in name for name in plain.state_dict())
    gated, new_names = build_initialized(
        replace(config, model=replace(ARCH, mechanism="softmax_sink+output_head_gate"))
    )
    assert {name.split(".scalars.")[1].split(".")[0] for name in new_names} == {"raw_sink", "raw_output_head_gate"}
    assert gated(TOKENS).isfinite().all()


def test_refusals(source: Path, tmp_path: Path) -> None:
    config = config_from_model(source)
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
            build_initialized(replace(config, model=replace(ARCH, **change)))
    with refuses("is a transformer, this is a multiscreen; drop --arch"):
        build_initialized(replace(config, model=TrainConfig().model))
    origin = find_origin(config, Bytes())
    assert origin is not None
    with refuses("has changed since the run began, before its first checkpoint"):
        copy_weights(build(configure(ARCH, vocab_size=260, context=16)), replace(origin, sha256="0"))
    bpe_folder = tmp_path / "bpe"
    bpe_folder.mkdir()
    from keysift.data.tokenizers import bpe

    bpe.train(["some text"], 260).save(bpe_folder)
    with refuses("uses the tokenizer bytes, but stdlib would be read as bpe:260; drop --tokenizer"):
        find_origin(config, keysift.data.tokenizers.load.load_tokenizer(bpe_folder))


def test_init_in_a_toml_file(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(f'init = "{source}"\nmechanism = "sigmoid"\nsteps = 3\n')
    config = read_toml(file)
    assert config.model == replace(ARCH, mechanism="sigmoid")
    assert config.init == str(source)
    file.write_text("steps = 4\n")
    assert replace(read_toml(file, source), steps=None) == config_from_model(source)


@pytest.fixture
def recall_config(tmp_path: Path) -> TrainConfig:
    """Config that starts from a model of the recall task."""
    task, path = Recall(letters=4, values=2, queries=2), tmp_path / "recall"
    save(build(configure(ARCH, vocab_size=task.tokenizer.vocab_size, context=16)), path)
    task.tokenizer.save(path)
    return replace(config_from_model(path), batch_tokens=32, steps=2)


def test_a_recall_model_is_trained_further(recall_config: TrainConfig, tmp_path: Path) -> None:
    config = replace(recall_config, data="recall:letters=4,values=2,queries=2")
    train(config, tmp_path / "run", show=False)
    manifest = read_manifest(Run(tmp_path / "run"))
    assert manifest.origin == find_origin(config, of_recall(hops=1, letters=4, values=2))
    train(replace(manifest.config, steps=3), tmp_path / "run", resume=True, show=False)


def test_recall_with_another_vocabulary_is_refused(recall_config: TrainConfig, source: Path, tmp_path: Path) -> None:
    with refuses(
        "uses the tokenizer recall:hops=1,letters=4,values=2, but recall:letters=8 would be read as "
        "recall:hops=1,letters=8,values=16; use --data recall:hops=1,letters=4,values=2, or start without --init"
    ):
        train(replace(recall_config, data="recall:letters=8"), tmp_path / "run", show=False)
    with refuses(
        "uses the tokenizer bytes, but recall:queries=2 would be read as recall:.*; use --data with a text, or start"
    ):
        train(replace(config_from_model(source), data="recall:queries=2", steps=2), tmp_path / "run", show=False)
    with refuses("recall generates its own rows, so tokenizer has no effect; drop it"):
        train(replace(recall_config, data="recall", tokenizer="bytes"), tmp_path / "run", show=False)


@pytest.mark.slow
def test_a_run_with_init_resumes_exactly(source: Path, tmp_path: Path) -> None:
    """Resuming equals an uninterrupted run. It keeps the hash of the source model and does not read it again."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the cat number {n} sat on the mat and looked at the other cat\n\n" for n in range(80)))
    config = replace(
        config_from_model(source),
        model=replace(ARCH, mechanism=("ssmax", "softmax_sink")),
        data=str(text),
        batch_tokens=32,
        save_every=2,
        lr=1e-3,
        warmup=0,
        sample_tokens=0,
        steps=4,
    )
    uninterrupted = train(config, tmp_path / "uninterrupted", show=False)
    train(replace(config, steps=2), tmp_path / "resumed", show=False)
    manifest = read_manifest(Run(tmp_path / "resumed"))
    assert manifest.origin == find_origin(config, Bytes())
    assert json.loads((tmp_path / "resumed" / "train.json").read_text())["origin"]["vocab_size"] == 260
    (source / "model.safetensors").unlink()
    resumed = train(replace(manifest.config, steps=4), tmp_path / "resumed", resume=True, show=False)
    a, b = keysift.load(uninterrupted).state_dict(), keysift.load(resumed).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["embedding.weight"], build(keysift.load(uninterrupted).config).embedding.weight)
