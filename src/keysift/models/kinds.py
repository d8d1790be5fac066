"""The kinds of models: for each its name, what describes it, its config and its class. Saving, loading, presets and
training all go by this table; a new kind of model is one line here."""

from dataclasses import dataclass
from typing import Any

import torch

from keysift.core.errors import DataError
from keysift.core.registry import Registry
from keysift.models.arch import Arch, MultiscreenArch, TransformerArch
from keysift.models.language import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig

ModelConfig = MultiscreenConfig | TransformerConfig


@dataclass(frozen=True)
class Kind:
    name: str
    arch: type[Any]
    config: type[Any]
    model: type[LanguageModel]


KINDS: Registry[Kind] = Registry("kind of model")
KINDS.add("multiscreen", Kind("multiscreen", MultiscreenArch, MultiscreenConfig, Multiscreen))
KINDS.add("transformer", Kind("transformer", TransformerArch, TransformerConfig, Transformer))


def kind_of(value: object) -> Kind:
    """Of a model, its config or its arch."""
    for kind in KINDS:
        if type(value) in (kind.arch, kind.config, kind.model):
            return kind
    raise DataError(
        f"{type(value).__name__} is not one of {', '.join(KINDS.names())}; add its kind to keysift.models.kinds.KINDS"
    )


def configure(arch: Arch, *, vocab_size: int, context: int) -> ModelConfig:
    """The whole config, once the tokenizer and the training length are known."""
    found: ModelConfig = kind_of(arch).config(**vars(arch), vocab_size=vocab_size, context=context)
    return found


def build(config: ModelConfig, generator: torch.Generator | None = None) -> LanguageModel:
    model: Any = kind_of(config).model
    made: LanguageModel = model(config, generator)
    return made


def empty(config: ModelConfig) -> LanguageModel:
    """The model without memory: to count it, or to be given tensors."""
    with torch.device("meta"):
        return build(config)
