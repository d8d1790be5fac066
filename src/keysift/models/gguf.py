"""Llama models in GGUF files, as the directory they were made of would hold them: a config and weights by name.

Quantised weights are turned into fp32 numbers by the package `gguf` (extra [gguf]).
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keysift.core.errors import DataError, UnsupportedError
from keysift.models.tensor_files import Entry

# Ours after "llama.": what config.json calls it.
_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "rope.dimension_count": "head_dim",
    "vocab_size": "vocab_size",
}
_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


class File:
    """An opened GGUF file: `fields` as it holds them, `config` as config.json would, and its weights."""

    def __init__(self, path: Path) -> None:
        package = _package()
        try:
            reader = package.GGUFReader(str(path))
            self.fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
            self._tensors = {_name(tensor.name): tensor for tensor in reader.tensors}
            self.header = {
                name: Entry(tuple(int(size) for size in tensor.shape[::-1]), "F32")
                for name, tensor in self._tensors.items()
            }
        except Exception as error:  # the package checks little: any fault of a file surfaces as anything
            raise DataError(f"{path} is not a whole GGUF file ({error!r}); copy it again from its source") from error
        self._dequantize = package.dequantize
        self.config = self._config(path)

    def _config(self, path: Path) -> dict[str, Any]:
        family = self.fields.get("general.architecture")
        if family != "llama":
            raise UnsupportedError(f"{path} holds a {family} model; of GGUF files keysift import reads llama ones")
        found: dict[str, Any] = {"model_type": family, "tie_word_embeddings": "lm_head.weight" not in self.header}
        for name, value in self.fields.items():
            if name.startswith("llama."):
                ours = name.removeprefix("llama.")
                # A field without another name keeps its own, and is refused as not understood.
                found[_FIELDS.get(ours, ours)] = value
        return found

    def read(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        numbers = self._dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        found = torch.from_numpy(numbers.reshape(self.header[name].shape))
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        return found if heads is None else _halves(found, self.config[heads])


def _name(theirs: str) -> str:
    """As a directory would name it."""
    stem, _, ending = theirs.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{ending}"
    first, layer, part = [*stem.split(".", 2), "", ""][:3]
    known = first == "blk" and part in _TENSORS
    return f"model.layers.{layer}.{_TENSORS[part]}.{ending}" if known else theirs


def _halves(weight: Tensor, heads: int) -> Tensor:
    """GGUF turns the channel pairs (2i, 2i + 1) of a head; here, as in transformers, they are (i, i + K/2)."""
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise UnsupportedError("GGUF files need the package gguf; pip install 'keysift[gguf]'") from error
    return gguf
