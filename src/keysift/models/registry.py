"""Registry of model kinds: name, architecture class, config class and model class.

Saving, loading, presets and training use this table; a new kind of model is one line here.
"""

from dataclasses import dataclass
from typing import Any

import torch

from keysift.core.errors import DataError
from keysift.core.registry import Registry
from keysift.models.architecture import Arch, MultiscreenArch, TransformerArch
from keysift.models.language_model import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig

ModelConfig = MultiscreenConfig | TransformerConfig


@dataclass(frozen=True)
class ModelKind:
    """The classes of one kind of model."""

    name: str
    arch: type[Any]
    config: type[Any]
    model: type[LanguageModel]


MODEL_KINDS: Registry[ModelKind] = Registry("kind of model")
MODEL_KINDS.add("multiscreen", ModelKind("multiscreen", MultiscreenArch, MultiscreenConfig, Multiscreen))
MODEL_KINDS.add("transformer", ModelKind("transformer", TransformerArch, TransformerConfig, Transformer))


def kind_of(value: object) -> ModelKind:
    """The kind of a model, a config or an architecture."""
    for kind in MODEL_KINDS:
        if type(value) in (kind.arch, kind.config, kind.model):
            return kind
    raise DataError(f"{type(value).__name__} is not one of {', '.join(MODEL_KINDS.names())}; add it to MODEL_KINDS")


def configure(arch: Arch, *, vocab_size: int, context: int) -> ModelConfig:
    """The full config of a model: the architecture, the vocabulary size and the training length."""
    config: ModelConfig = kind_of(arch).config(**vars(arch), vocab_size=vocab_size, context=context)
    return config


def build(config: ModelConfig, generator: torch.Generator | None = None) -> LanguageModel:
    """A model with random weights."""
    model_class: Any = kind_of(config).model
    model: LanguageModel = model_class(config, generator)
    return model


def build_meta(config: ModelConfig) -> LanguageModel:
    """The model on the meta device: it allocates no memory. For counting parameters, or for assigning weights."""
    with torch.device("meta"):
        return build(config)
