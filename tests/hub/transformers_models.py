"""Small transformers models with random weights and a word tokenizer, without downloads."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["<end>", "the", "red", "ball", "was", "gone", "and", "she", "ran", "home", "fast", "blue", "sky", ".", ","]


def build(family: str, implementation: str = "sdpa", **options: Any) -> Any:
    """Two layers; scores large enough that heads differ."""
    import transformers

    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "attn_implementation": implementation, **options}
    if family in ("phi", "phi3", "smollm3"):
        sizes["pad_token_id"] = 0  # the default lies outside this vocabulary
    if family == "gemma2":
        sizes["attn_logit_softcapping"] = 0.5  # low enough to affect scores of this size
    if family == "gpt2":
        config = transformers.GPT2Config(**{"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, **sizes})
    else:
        kind = {
            "llama": transformers.LlamaConfig,
            "qwen2": transformers.Qwen2Config,
            "qwen3": transformers.Qwen3Config,
            "mistral": transformers.MistralConfig,
            "gemma": transformers.GemmaConfig,
            "gemma2": transformers.Gemma2Config,
            "gemma3": transformers.Gemma3TextConfig,
            "smollm3": transformers.SmolLM3Config,
            "phi": transformers.PhiConfig,
            "phi3": transformers.Phi3Config,
        }[family]
        config = kind(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
            **sizes,
        )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model.eval()


def tokenizer() -> Any:
    import transformers

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<end>")


def save_model(path: Path, family: str = "llama", **options: Any) -> Path:
    build(family, **options).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path
