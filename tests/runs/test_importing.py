"""Bringing models of others here: what is read and what is refused. tests/hub/test_import.py compares the logits."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import keysift
from keysift.cli.main import main
from keysift.data.gguf_tokenizer import from_fields
from keysift.models.llama import read_config
from keysift.nn.inference import Inference
from keysift.runs.importing import imported
from tests.refusals import refuses
from tests.runs.foreign import LLAMA, WORDS, gguf_file, weights, write

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 1.5}


def test_a_directory_becomes_a_model_with_its_tokenizer(tmp_path: Path) -> None:
    made = imported(write(tmp_path / "theirs"), tmp_path / "ours")
    text = keysift.open(tmp_path / "ours")
    assert text.tokenizer.begin == (0,)
    assert list(text._tokens("once upon")) == [0, 2, 3]
    tokens = torch.tensor([[0, 2, 3, 4]])
    torch.testing.assert_close(text.model(tokens), made.model(tokens))
    theirs, ours = weights(), text.model.state_dict()
    assert len(ours) == len(theirs)
    torch.testing.assert_close(ours["layers.1.attention_norm.weight"], theirs["model.layers.1.input_layernorm.weight"])
    torch.testing.assert_close(
        ours["layers.0.attention.k_proj.weight"], theirs["model.layers.0.self_attn.k_proj.weight"]
    )
    origin = json.loads((tmp_path / "ours" / "origin.json").read_text())
    assert origin["family"] == "llama"
    assert set(origin["sha256"]) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    half = imported(tmp_path / "theirs", tmp_path / "half", dtype="bf16")
    assert half.model.embedding.weight.dtype is torch.bfloat16


def test_shards_and_a_table_written_twice(tmp_path: Path) -> None:
    """A tied table may stand in the file a second time, and old files hold RoPE's rates."""
    path = write(tmp_path / "theirs")
    whole = imported(path, tmp_path / "whole").model.state_dict()
    (path / "model.safetensors").unlink()
    tensors = weights()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(1)
    names = sorted(tensors)
    places = {name: f"model-0000{1 + (i > 9)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, path / file)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    sharded = imported(path, tmp_path / "sharded").model.state_dict()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)

    index.write_text(json.dumps({"weight_map": {**places, "extra": places[names[0]]}}))
    with refuses("does not hold extra, which model.safetensors.index.json places there"):
        imported(path, tmp_path / "a")
    index.write_text(json.dumps({"weight_map": {**places, names[0]: "../elsewhere"}}))
    with refuses("must name files of its own folder"):
        imported(path, tmp_path / "a")
    index.write_text("[]")
    with refuses("is not an index of weights"):
        imported(path, tmp_path / "a")
    index.write_text(json.dumps({"weight_map": {**places, names[0]: "gone.safetensors"}}))
    with refuses("gone.safetensors is missing; .* says that the model has 3 files"):
        imported(path, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, {"attention_bias": "none", "tied_embeddings": True, "head_width": None, "final_gain": True}),
        ({"attention_bias": True, "tie_word_embeddings": None}, {"attention_bias": "qkvo", "tied_embeddings": False}),
        ({"model_type": "qwen2"}, {"attention_bias": "qkv", "qk_norm": False}),
        ({"model_type": "qwen3"}, {"head_width": 128, "qk_norm": True, "attention_bias": "none"}),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4}, {"context": 32}),
        ({"model_type": "mistral", "sliding_window": 32, "head_dim": 6}, {"head_width": 6}),
        ({"rope_parameters": None, "rope_theta": 500.0}, {"rope_theta": 500.0, "rope_rates": "none"}),
        (
            {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_rates": "linear:factor=2"},
        ),
        ({"rope_parameters": {"rope_theta": None}, "rope_theta": 500.0}, {"rope_theta": 500.0}),
        (
            {"rope_parameters": {"type": "linear", "rope_type": None, "factor": 2}},
            {"rope_rates": "linear:factor=2"},
        ),
        (
            {"rope_parameters": {"rope_type": None, "type": "linear", "factor": 2}},
            {"rope_rates": "linear:factor=2"},
        ),
        (
            {"rope_parameters": YARN},
            {"rope_rates": "yarn:factor=4.0,original=8,fast=32.0,slow=1.0,attention=1.5,whole=1"},
        ),
    ],
    ids=str,
)
def test_fields(change: dict[str, Any], found: dict[str, Any]) -> None:
    config = read_config({**LLAMA, **change}, "config.json")
    assert {name: getattr(config, name) for name in found} == found


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "gpt2"}, "describes a gpt2 model; keysift import reads llama, mistral, qwen2, qwen3"),
        ({"hidden_size": None}, "says no hidden_size"),
        ({"hidden_size": "8"}, "hidden_size is '8', which is of the wrong kind"),
        ({"vocab_size": True}, "vocab_size is True, which is of the wrong kind"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and only silu is understood"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"logit_scale": 2}, "logit_scale = 2 is not understood, and ignoring it would give another model"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .* is not understood"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "auto_map = .* is not understood"),
        ({"model_type": "mistral", "sliding_window": 8}, "sliding_window is 8, shorter than the context of 32"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"]}, "only full_attention is supported"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "RoPE is of the kind 'dynamic'; default, linear",
        ),
        ({"rope_parameters": {**YARN, "mscale": 1.0}}, "RoPE: mscale = 1.0 is not understood"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "turning a part of the channels is not understood"),
        ({"rms_norm_eps": 0}, r"norm_eps must lie in \(0, 1\)"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 10*, which is of the wrong kind"),
        ({"sliding_window": 8}, "sliding_window is 8, shorter than the context of 32"),
        ({"rope_theta": 500.0}, "says rope_theta twice, 500.0 and 10000.0; keep the one that is right"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "says rope_type twice, 'linear' and 'default'"),
        ({"rope_parameters": "none"}, "rope_parameters is 'none', which is of the wrong kind"),
        ({"rope_parameters": {"rope_theta": math.inf}}, "RoPE: rope_theta is inf, which is of the wrong kind"),
        ({"rope_parameters": {**YARN, "factor": 1e-300}}, "factor must be a number from 1e-09 to"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_named(change: dict[str, Any], match: str) -> None:
    with refuses(match):
        read_config({**LLAMA, **change}, "config.json")


def test_damaged_directories(tmp_path: Path) -> None:
    path, out = write(tmp_path / "theirs"), tmp_path / "ours"
    weights_file, config_file = path / "model.safetensors", path / "config.json"
    good, told = weights_file.read_bytes(), config_file.read_bytes()

    def fails(match: str) -> None:
        with refuses(match):
            imported(path, out)
        assert not out.exists()
        weights_file.write_bytes(good)
        config_file.write_bytes(told)

    weights_file.write_bytes(good[:-5])
    fails("model.safetensors is not a whole safetensors file")
    weights_file.write_bytes(good[:20])
    fails("is not a whole safetensors file")
    config_file.write_bytes(told[:30])
    fails("config.json is not JSON")
    config_file.write_text("{}")
    fails("config.json does not say its model_type")
    config_file.write_text(json.dumps({"model_type": "keysift_transformer"}))
    fails("is a keysift model already")
    config_file.write_text(json.dumps({"model": "transformer"}))
    fails("is a keysift model already")
    config_file.write_text(json.dumps({**LLAMA, "num_hidden_layers": 10**9}))
    fails("config.json says depth 1000000000, more than model.safetensors can hold")
    config_file.write_text(json.dumps({**LLAMA, "intermediate_size": 13}))
    fails(r"model.layers.0.mlp.gate_proj.weight is \(12, 16\), the config says \(13, 16\)")
    config_file.write_text(json.dumps({**LLAMA, "tie_word_embeddings": False}))
    fails("lm_head.weight is missing")
    for change, match in (
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(16)}, "q_proj.bias is not a weight of this model"),
        ({"lm_head.weight": torch.zeros(len(WORDS), 16)}, "lm_head.weight differs from the embedding"),
        ({"model.norm.weight": torch.zeros(16, dtype=torch.int8)}, "model.norm.weight is I8"),
    ):
        save_file({**weights(), **change}, weights_file)
        fails(match)
    (path / "tokenizer.json").unlink()
    fails("holds no tokenizer.json; make one with AutoTokenizer")
    weights_file.unlink()
    with refuses("holds no weights; expected model.safetensors"):
        imported(path, out)
    (path / "pytorch_model.bin").write_bytes(b"")
    with refuses("pytorch_model.bin is a pickle, which can run code"):
        imported(path, out)
    with refuses("holds no config.json; give a Hugging Face directory"):
        imported(tmp_path, out)
    with refuses("is not a file; give"):
        imported(tmp_path / "none.gguf", out)
    write(tmp_path / "whole")
    with refuses("exists already; an imported model needs a folder of its own"):
        imported(tmp_path / "whole", path)


def test_every_verb_says_how_to_bring_it_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "theirs")
    (tmp_path / "text.txt").write_text("some words\n\n" * 200)
    single = tmp_path / "model.gguf"
    single.write_bytes(b"GGUF")
    for words in (
        ("generate", path, "--prompt", "a"),
        ("generate", single, "--prompt", "a"),
        ("eval", "loss", path),
        ("eval", "loss", single),
        ("eval", "positions", path),
        ("export", path, tmp_path / "exported", "--hub"),
        ("report", path),
        ("runs", path),
        ("train", "--resume", path),
        ("train", "--init", path, "--out", tmp_path / "run"),
        ("train", "--match", path, "--data", tmp_path / "text.txt", "--dry-run"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        assert ended.value.code == 2, words
        assert "bring it here with keysift import" in capsys.readouterr().err, words
    with pytest.raises(SystemExit) as ended:
        main(["import", str(path), "--out", str(tmp_path / "ours")])
    assert ended.value.code == 0
    assert "keysift generate" in capsys.readouterr().err
    assert (tmp_path / "ours" / "model.safetensors").is_file()


def test_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="NO GGUF: pip install gguf")
    path = gguf_file(tmp_path / "model.gguf")
    same = imported(write(tmp_path / "theirs"), tmp_path / "a").model
    found = imported(path, tmp_path / "b", tokenizer=tmp_path / "theirs").model
    tokens = torch.tensor([[0, 2, 3, 4, 1]])
    assert replace(found.config, norm_eps=1e-5, head_width=None) == replace(same.config, head_width=None)
    torch.testing.assert_close(found(tokens), same(tokens))
    with refuses("has a tokenizer of the kind None, None"):
        imported(path, tmp_path / "c")
    with refuses("rope.scaling.factor = 2.0 is not understood"):
        imported(
            gguf_file(tmp_path / "more.gguf", llama__rope__scaling__factor=2.0),
            tmp_path / "c",
            tokenizer=tmp_path / "theirs",
        )
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:900])
    with refuses("cut.gguf is not a whole GGUF file"):
        imported(tmp_path / "cut.gguf", tmp_path / "c")
    (tmp_path / "other.gguf").write_bytes(path.read_bytes().replace(b"llama", b"bloom"))
    with refuses("holds a bloom model; of GGUF files keysift import reads llama ones"):
        imported(tmp_path / "other.gguf", tmp_path / "c")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with refuses("GGUF files need the package gguf"):
        imported(path, tmp_path / "c")


def test_a_tokenizer_inside_a_gguf_file() -> None:
    letters = ["<|begin|>", "<|end|>", "Ġ", "h", "i", "1", "2", "hi", "12", "Ġhi"]
    told = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": letters,
        "token_type": [3, 3] + [1] * 8,
        "merges": ["h i", "1 2", "Ġ hi"],
        "eos_token_id": 1,
        "bos_token_id": 0,
        "add_bos_token": True,
    }
    fields = {f"tokenizer.ggml.{name}": value for name, value in told.items()}
    found = from_fields(fields, Path("model.gguf"))
    assert found.begin == (0,)
    assert found.end_id == 1
    assert found.encode("hi hi12") == [7, 9, 5, 6], "digits stand alone"
    assert found.decode([0, 7, 9, 1]) == "hi hi"
    plain = from_fields(
        {**fields, "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": False}, Path("m.gguf")
    )
    assert plain.encode("hi12") == [7, 8]
    assert plain.begin == ()
    with refuses("has no whole tokenizer"):
        from_fields({name: value for name, value in fields.items() if "merges" not in name}, Path("model.gguf"))


def test_a_text_follows_its_prompt_and_every_document_its_begin_token(tmp_path: Path) -> None:
    """In training data, in evaluation, before prompts."""
    from keysift.data.shards import build
    from keysift.evaluate.texts import beginning

    text = imported(write(tmp_path / "theirs"), tmp_path / "ours")
    (tmp_path / "a.txt").write_text("once upon a time")
    corpus = build(str(tmp_path / "a.txt"), text.tokenizer, tmp_path / "corpus", show=False)
    assert corpus.read(0, 6).tolist() == [0, 2, 3, 4, 5, 1]
    assert beginning(str(tmp_path / "a.txt"), text.tokenizer, 9)[0].tolist() == [0, 2, 3, 4, 5, 1]
    made = text.start([keysift.models.generate.Request(prompt="once", max_new_tokens=2)], inference=Inference()).run()
    words = [WORDS[token] for token in made.rows[0].tokens if WORDS[token][0] != "<"]
    assert made.rows[0].text == "".join(f" {word}" for word in words), "a word behind another has its blank"
