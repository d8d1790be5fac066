"""The classes that transformers registers: a config, a backbone and a causal language model for each kind of model.

Configs and models share this module, because an exported directory names one file for all of them (remote_code.py).
"""

from typing import ClassVar

from keysift.hub.configuration import KeysiftConfig
from keysift.hub.modeling import KeysiftForCausalLM, KeysiftModel
from keysift.models.registry import MODEL_KINDS


class MultiscreenConfig(KeysiftConfig):
    kind = MODEL_KINDS.find("multiscreen")
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "tiles",
        "max_position_embeddings": "context",
    }


class MultiscreenModel(KeysiftModel):
    config_class = MultiscreenConfig


class MultiscreenForCausalLM(KeysiftForCausalLM):
    config_class = MultiscreenConfig
    backbone_class = MultiscreenModel


class TransformerConfig(KeysiftConfig):
    kind = MODEL_KINDS.find("transformer")
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "max_position_embeddings": "context",
    }


class TransformerModel(KeysiftModel):
    config_class = TransformerConfig


class TransformerForCausalLM(KeysiftForCausalLM):
    config_class = TransformerConfig
    backbone_class = TransformerModel
