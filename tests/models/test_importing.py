"""Import of pretrained models: supported files and refusals. tests/hub/test_import.py compares the logits."""

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
from keysift.data.tokenizers.gguf import from_fields
from keysift.models.importing import import_model
from keysift.models.llama_config import read_config
from keysift.nn.inference import Inference
from tests.models.foreign import LLAMA, WORDS, gguf_file, weights, write
from tests.refusals import refuses

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "attention_factor": 1.5}


def test_a_directory_becomes_a_model_with_its_tokenizer(tmp_path: Path) -> None:
    imported = import_model(write(tmp_path / "theirs"), tmp_path / "ours")
    text = keysift.open(tmp_path / "ours")
    assert text.tokenizer.prefix_ids == (0,)
    assert list(text._tokens("once upon")) == [0, 2, 3]
    tokens = torch.tensor([[0, 2, 3, 4]])
    torch.testing.assert_close(text.model(tokens), imported.model(tokens))
    theirs, ours = weights(), text.model.state_dict()
    assert len(ours) == len(theirs)
    torch.testing.assert_close(ours["layers.1.attention_norm.weight"], theirs["model.layers.1.input_layernorm.weight"])
    torch.testing.assert_close(
        ours["layers.0.attention.k_proj.weight"], theirs["model.layers.0.self_attn.k_proj.weight"]
    )
    origin = json.loads((tmp_path / "ours" / "origin.json").read_text())
    assert origin["family"] == "llama"
    assert set(origin["sha256"]) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    half = import_model(tmp_path / "theirs", tmp_path / "half", dtype="bf16")
    assert half.model.embedding.weight.dtype is torch.bfloat16


def test_shards_and_a_duplicated_embedding(tmp_path: Path) -> None:
    """Files may contain the tied embedding twice, and old files contain the frequencies of RoPE."""
    path = write(tmp_path / "theirs")
    whole = import_model(path, tmp_path / "whole").model.state_dict()
    (path / "model.safetensors").unlink()
    tensors = weights()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(1)
    names = sorted(tensors)
    files_by_name = {name: f"model-0000{1 + (i > 9)}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(files_by_name.values()):
        save_file({name: tensors[name] for name in names if files_by_name[name] == file}, path / file)
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files_by_name}))
    sharded = import_model(path, tmp_path / "sharded").model.state_dict()
    assert all(torch.equal(sharded[name], whole[name]) for name in whole)

    index.write_text(json.dumps({"weight_map": {**files_by_name, "extra": files_by_name[names[0]]}}))
    with refuses("has no tensor extra, which model.safetensors.index.json places there"):
        import_model(path, tmp_path / "a")
    index.write_text(json.dumps({"weight_map": {**files_by_name, names[0]: "../elsewhere"}}))
    with refuses("must list files of its own folder"):
        import_model(path, tmp_path / "a")
    index.write_text("[]")
    with refuses("is not an index of weights"):
        import_model(path, tmp_path / "a")
    index.write_text(json.dumps({"weight_map": {**files_by_name, names[0]: "gone.safetensors"}}))
    with refuses("gone.safetensors is missing; .* lists 3 files"):
        import_model(path, tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {"attention_bias": "none", "tied_embeddings": True, "head_width": None, "final_gain": True}),
        ({"attention_bias": True, "tie_word_embeddings": None}, {"attention_bias": "qkvo", "tied_embeddings": False}),
        ({"model_type": "qwen2"}, {"attention_bias": "qkv", "qk_norm": False}),
        ({"model_type": "qwen3"}, {"head_width": 128, "qk_norm": True, "attention_bias": "none"}),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4}, {"context": 32}),
        ({"model_type": "mistral", "sliding_window": 8, "head_dim": 6}, {"head_width": 6, "window": 8}),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
            {"window": (0, 4)},
        ),
        (
            {
                "model_type": "qwen3",
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            {"window": (4, 0)},
        ),
        ({"model_type": "smollm3", "rope_parameters": None}, {"position": ("rope", "rope"), "rope_theta": 2e6}),
        (
            {"model_type": "smollm3", "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 4},
            {"position": ("rope", "none"), "window": (0, 4)},
        ),
        ({"model_type": "phi3", "partial_rotary_factor": 0.5, "sliding_window": 3}, {"rope_share": 0.5, "window": 3}),
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
def test_config_fields(change: dict[str, Any], expected: dict[str, Any]) -> None:
    config = read_config({**LLAMA, **change}, "config.json")
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "gpt2"}, "describes a gpt2 model; keysift import reads llama, mistral, qwen2, qwen3"),
        ({"hidden_size": None}, "has no hidden_size"),
        (
            {"model_type": "gpt_oss", "num_local_experts": 4},
            r"a gpt_oss model with a mixture of experts \(num_local_experts = 4\); keysift import reads dense",
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2]}, "no_rope_layers must list 0 or 1 for each of 2 layers"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers must list 0 or 1 for each of 2 layers"),
        ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval must be at least 1, got 0"),
        ({"model_type": "phi3", "partial_rotary_factor": "0.5"}, "partial_rotary_factor must be a finite number"),
        ({"model_type": "phi3", "rope_parameters": {"rope_type": "longrope"}}, "scaling is of type 'longrope'"),
        ({"hidden_size": "8"}, "hidden_size must be an integer, got '8'"),
        ({"vocab_size": True}, "vocab_size must be an integer, got True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', and only silu is supported"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"logit_scale": 2}, "logit_scale = 2 is not understood, and ignoring it would change the model"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .* is not understood"),
        ({"auto_map": {"AutoModel": "evil.py"}}, "auto_map = .* is not understood"),
        (
            {"model_type": "qwen3", "layer_types": ["chunked_attention"] * 2},
            "supported are lists of full_attention and",
        ),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "supported are lists of full_attention and"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2}, "sliding_window is missing or not in use"),
        (
            {"model_type": "mistral", "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
            "a mistral model has its window in every layer",
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "RoPE scaling is of type 'dynamic'; supported are default, linear",
        ),
        ({"rope_parameters": {**YARN, "mscale": 1.0}}, "RoPE: mscale = 1.0 is not understood"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotating only some channels is not supported"),
        ({"rms_norm_eps": 0}, r"norm_eps must lie in \(0, 1\]"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps must be a finite number, got 10*"),
        ({"sliding_window": 8}, "sliding_window is 8, and a llama model has none"),
        ({"rope_theta": 500.0}, "sets rope_theta twice, to 500.0 and 10000.0; keep the correct value"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "sets rope_type twice, to 'linear' and 'default'"),
        ({"rope_parameters": "none"}, "rope_parameters must be an object, got 'none'"),
        ({"rope_parameters": {"rope_theta": math.inf}}, "RoPE: rope_theta must be a finite number, got inf"),
        ({"rope_parameters": {**YARN, "factor": 1e-300}}, "factor must be a number from 1e-09 to"),
    ],
    ids=str,
)
def test_errors_name_invalid_and_unsupported_fields(change: dict[str, Any], match: str) -> None:
    with refuses(match):
        read_config({**LLAMA, **change}, "config.json")


def test_damaged_directories_are_refused(tmp_path: Path) -> None:
    path, out = write(tmp_path / "theirs"), tmp_path / "ours"
    weights_file, config_file = path / "model.safetensors", path / "config.json"
    weights_bytes, config_bytes = weights_file.read_bytes(), config_file.read_bytes()

    def fails(match: str) -> None:
        """Check that the import fails, then restore the weights and the config."""
        with refuses(match):
            import_model(path, out)
        assert not out.exists()
        weights_file.write_bytes(weights_bytes)
        config_file.write_bytes(config_bytes)

    weights_file.write_bytes(weights_bytes[:-5])
    fails("model.safetensors is not a complete safetensors file")
    weights_file.write_bytes(weights_bytes[:20])
    fails("is not a complete safetensors file")
    config_file.write_bytes(config_bytes[:30])
    fails("config.json is not JSON")
    config_file.write_text("{}")
    fails("config.json has no model_type")
    config_file.write_text(json.dumps({"model_type": "keysift_transformer"}))
    fails("is a keysift model already")
    config_file.write_text(json.dumps({"model_type": "keysift_multiscreen"}))
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
    fails("has no tokenizer.json; write one with AutoTokenizer")
    weights_file.unlink()
    with refuses("has no weights; expected model.safetensors"):
        import_model(path, out)
    (path / "pytorch_model.bin").write_bytes(b"")
    with refuses("pytorch_model.bin is a pickle, which can run code"):
        import_model(path, out)
    with refuses("has no config.json; give a Hugging Face directory"):
        import_model(tmp_path, out)
    with refuses("is not a file; give"):
        import_model(tmp_path / "none.gguf", out)
    write(tmp_path / "whole")
    with refuses("exists already; an imported model needs a new folder"):
        import_model(tmp_path / "whole", path)


def test_every_command_explains_how_to_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "theirs")
    (tmp_path / "text.txt").write_text("some words\n\n" * 200)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    for command in (
        ("generate", path, "--prompt", "a"),
        ("generate", gguf, "--prompt", "a"),
        ("eval", "loss", path),
        ("eval", "loss", gguf),
        ("eval", "positions", path),
        ("export", path, tmp_path / "exported", "--hub"),
        ("report", path),
        ("runs", path),
        ("train", "--resume", path),
        ("train", "--init", path, "--out", tmp_path / "run"),
        ("train", "--match", path, "--data", tmp_path / "text.txt", "--dry-run"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            main([str(word) for word in command])
        assert exit_info.value.code == 2, command
        assert "import it with keysift import" in capsys.readouterr().err, command
    with pytest.raises(SystemExit) as exit_info:
        main(["import", str(path), "--out", str(tmp_path / "ours")])
    assert exit_info.value.code == 0
    assert "keysift generate" in capsys.readouterr().err
    assert (tmp_path / "ours" / "model.safetensors").is_file()


def test_a_gguf_file_gives_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="NO GGUF: pip install gguf")
    path = gguf_file(tmp_path / "model.gguf")
    expected = import_model(write(tmp_path / "theirs"), tmp_path / "a").model
    result = import_model(path, tmp_path / "b", tokenizer=tmp_path / "theirs").model
    tokens = torch.tensor([[0, 2, 3, 4, 1]])
    assert replace(result.config, norm_eps=1e-5, head_width=None) == replace(expected.config, head_width=None)
    torch.testing.assert_close(result(tokens), expected(tokens))
    with refuses("must be byte-level BPE as in gpt-2 or smollm, got model None"):
        import_model(path, tmp_path / "c")
    with refuses("rope.scaling.factor = 2.0 is not understood"):
        import_model(
            gguf_file(tmp_path / "more.gguf", llama__rope__scaling__factor=2.0),
            tmp_path / "c",
            tokenizer=tmp_path / "theirs",
        )
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:900])
    with refuses("cut.gguf is not a complete GGUF file"):
        import_model(tmp_path / "cut.gguf", tmp_path / "c")
    (tmp_path / "other.gguf").write_bytes(path.read_bytes().replace(b"llama", b"bloom"))
    with refuses("contains a bloom model; keysift import reads GGUF files of llama models"):
        import_model(tmp_path / "other.gguf", tmp_path / "c")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with refuses("GGUF files need the package gguf"):
        import_model(path, tmp_path / "c")


def test_the_tokenizer_inside_a_gguf_file() -> None:
    vocabulary = ["<|begin|>", "<|end|>", "Ġ", "h", "i", "1", "2", "hi", "12", "Ġhi"]
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": vocabulary,
        "token_type": [3, 3] + [1] * 8,
        "merges": ["h i", "1 2", "Ġ hi"],
        "eos_token_id": 1,
        "bos_token_id": 0,
        "add_bos_token": True,
    }
    fields = {f"tokenizer.ggml.{name}": value for name, value in values.items()}
    result = from_fields(fields, Path("model.gguf"))
    assert result.prefix_ids == (0,)
    assert result.end_id == 1
    assert result.encode("hi hi12") == [7, 9, 5, 6], "each digit is a token"
    assert result.decode([0, 7, 9, 1]) == "hi hi"
    plain = from_fields(
        {**fields, "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": False}, Path("m.gguf")
    )
    assert plain.encode("hi12") == [7, 8]
    assert plain.prefix_ids == ()
    with refuses("has no complete tokenizer"):
        from_fields({name: value for name, value in fields.items() if "merges" not in name}, Path("model.gguf"))


def test_begin_token_precedes_documents_and_prompts(tmp_path: Path) -> None:
    """The begin token precedes documents in training data and evaluation, and prompts in generation."""
    from keysift.data.shards import build
    from keysift.evaluate.texts import first_tokens

    text = import_model(write(tmp_path / "theirs"), tmp_path / "ours")
    (tmp_path / "a.txt").write_text("once upon a time")
    corpus = build(str(tmp_path / "a.txt"), text.tokenizer, tmp_path / "corpus", show=False)
    assert corpus.read(0, 6).tolist() == [0, 2, 3, 4, 5, 1]
    assert first_tokens(str(tmp_path / "a.txt"), text.tokenizer, 9)[0].tolist() == [0, 2, 3, 4, 5]
    result = text.start([keysift.models.generate.Request(prompt="once", max_new_tokens=2)], inference=Inference()).run()
    words = [WORDS[token] for token in result.rows[0].tokens if WORDS[token][0] != "<"]
    assert result.rows[0].text == "".join(f" {word}" for word in words), "a generated word keeps its leading space"
