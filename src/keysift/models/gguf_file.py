"""Read Llama models from GGUF files, with the config fields and weight names of a Hugging Face directory.

The package `gguf` (extra [gguf]) dequantises weights to fp32.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keysift.core.errors import DataError, UnsupportedError
from keysift.models.tensor_files import Entry

# GGUF fields, without the prefix "llama.", and their names in config.json.
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
    """An open GGUF file: its raw `fields`, its `config` in the form of config.json, and its weights."""

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
        except Exception as error:  # the package validates little, so a damaged file can raise any exception
            raise DataError(f"{path} is not a complete GGUF file ({error!r}); copy it again from its source") from error
        self._dequantize = package.dequantize
        self.config = self._config(path)

    def _config(self, path: Path) -> dict[str, Any]:
        family = self.fields.get("general.architecture")
        if family != "llama":
            raise UnsupportedError(f"{path} contains a {family} model; keysift import reads GGUF files of llama models")
        config: dict[str, Any] = {"model_type": family, "tie_word_embeddings": "lm_head.weight" not in self.header}
        for name, value in self.fields.items():
            if name.startswith("llama."):
                ours = name.removeprefix("llama.")
                # An unknown field keeps its name, and llama_config rejects it.
                config[_FIELDS.get(ours, ours)] = value
        return config

    def read(self, name: str) -> Tensor:
        """A weight in fp32."""
        tensor = self._tensors[name]
        numbers = self._dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        weight = torch.from_numpy(numbers.reshape(self.header[name].shape))
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        return weight if heads is None else _halves(weight, self.config[heads])


def _name(theirs: str) -> str:
    """The name of a tensor in a Hugging Face directory."""
    stem, _, ending = theirs.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{ending}"
    first, layer, part = [*stem.split(".", 2), "", ""][:3]
    known = first == "blk" and part in _TENSORS
    return f"model.layers.{layer}.{_TENSORS[part]}.{ending}" if known else theirs


def _halves(weight: Tensor, heads: int) -> Tensor:
    """Reorder the channels of each head: GGUF rotates pairs (2i, 2i + 1), we and transformers rotate (i, i + K/2)."""
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise UnsupportedError("GGUF files need the package gguf; pip install 'keysift[gguf]'") from error
    return gguf
