"""Write small Hugging Face directories and GGUF files without transformers: random weights, a tiny tokenizer."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

WORDS = ("<s>", "</s>", "once", "upon", "a", "time", "there", "was")
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 16,  # four channels per head: with two, both pairings of RoPE would be equal
    "intermediate_size": 12,
    "max_position_embeddings": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "vocab_size": len(WORDS),
}


def weights(config: dict[str, Any] = LLAMA) -> dict[str, Tensor]:
    """Random weights of a Llama with this config."""
    width, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    key_width = width // heads * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (config["vocab_size"], width), "model.norm": (width,)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}input_layernorm": (width,), f"{prefix}post_attention_layernorm": (width,)}
        shapes |= {f"{prefix}self_attn.{name}_proj": (width, width) for name in "qo"}
        shapes |= {f"{prefix}self_attn.{name}_proj": (key_width, width) for name in "kv"}
        shapes |= {f"{prefix}mlp.{name}_proj": (inner, width) for name in ("gate", "up")}
        shapes[f"{prefix}mlp.down_proj"] = (width, inner)
    generator = torch.Generator().manual_seed(0)
    return {f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(path: Path, config: dict[str, Any] = LLAMA, tensors: dict[str, Tensor] | None = None) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(weights() if tensors is None else tensors, path / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(path)
    return path


def write_tokenizer(path: Path) -> None:
    engine = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="a"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    engine.add_special_tokens(["<s>", "</s>"])
    engine.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    engine.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))


def gguf_file(path: Path, **extra_fields: Any) -> Path:
    """Write LLAMA as a GGUF file in fp32, with interleaved query and key channels as llama.cpp stores them."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_context_length(32)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(12)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(WORDS))
    for name, value in extra_fields.items():
        writer.add_float32(name.replace("__", "."), value)
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"}
    for name, tensor in weights().items():
        result = name.replace("model.layers", "blk").replace("model.embed_tokens", "token_embd")
        result = result.replace("model.norm", "output_norm").replace("mlp.", "ffn_")
        for theirs, ours in names.items():
            result = result.replace(theirs, ours)
        result = result.replace("self_attn.", "attn_").replace("_proj", "")
        if "attn_q" in result or "attn_k" in result:
            heads = 4 if "attn_q" in result else 2
            tensor = tensor.view(heads, 2, -1, 16).transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(result, tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
