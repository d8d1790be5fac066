"""Configs of keysift's models for transformers: keysift's config, and the settings of transformers.

    config = AutoConfig.from_pretrained("runs/first")
    config.keysift            MultiscreenConfig(depth=8, tiles=8, ...)
    config.depth              8, and so is config.num_hidden_layers, the name transformers looks for

No field is repeated here: attributes, file format and checks are those of `config.keysift`.
"""

from dataclasses import fields, replace
from typing import Any, ClassVar, cast

from transformers import PreTrainedConfig

from keysift.core import config as configs
from keysift.core.errors import UnsupportedError
from keysift.models.model_type import MODEL_TYPE
from keysift.models.registry import ModelConfig, ModelKind
from keysift.models.save import HOST_FIELDS, model_fields

# Arguments that transformers passes to a config in addition to the content of config.json.
_EXTRA_ARGUMENTS = frozenset(
    (
        *("attn_implementation", "experts_implementation", "name_or_path", "num_labels", "per_layer_config"),
        *("quantization_config", "tie_last_hidden_states"),
    )
)


class _Field:
    """A field of keysift's config, as an attribute of the transformers config."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type[Any] | None = None) -> Any:
        return self if owner is None else getattr(owner.keysift, self.name)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.keysift = replace(owner.keysift, **{self.name: value})


class KeysiftConfig(PreTrainedConfig):  # type: ignore[misc]
    """Abstract base; a subclass sets the kind of model."""

    kind: ClassVar[ModelKind]
    has_no_defaults_at_init: ClassVar[bool] = True  # sizes have no defaults
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init_subclass__(cls, **more: Any) -> None:
        for field in fields(cls.kind.config):
            setattr(cls, field.name, _Field(field.name))
        cls.model_type = f"{MODEL_TYPE}{cls.kind.name}"
        # transformers generates an __init__ from annotated fields for a class without its own; this class has none.
        cls.__init__ = KeysiftConfig.__init__  # type: ignore[method-assign]
        super().__init_subclass__(**more)

    def __init__(self, **arguments: Any) -> None:
        for theirs, own in self.attribute_map.items():
            if theirs in arguments:
                value = arguments.pop(theirs)
                arguments.setdefault(own, value)
        hosts = {name: value for name, value in arguments.items() if _belongs_to_transformers(name)}
        ours = {name: value for name, value in model_fields(arguments).items() if name not in hosts}
        self.keysift: ModelConfig = configs.from_dict(self.kind.config, ours)
        self.use_cache: bool = hosts.pop("use_cache", True)
        super().__init__(**{"auto_map": {}, **hosts})  # TRL reads auto_map of every model outside transformers

    @classmethod
    def of(cls, config: ModelConfig) -> "KeysiftConfig":
        return cls(**configs.to_dict(config))

    @property
    def tie_word_embeddings(self) -> bool:
        """The name of `tied_embeddings` in transformers."""
        return getattr(self.keysift, "tied_embeddings", True)

    @tie_word_embeddings.setter
    def tie_word_embeddings(self, value: bool) -> None:
        if hasattr(self.keysift, "tied_embeddings"):
            self.keysift = replace(cast(Any, self.keysift), tied_embeddings=value)
        elif not value:
            raise UnsupportedError(
                "a Multiscreen reads its logits from the embedding, so tie_word_embeddings cannot be False"
            )

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = super().to_dict()
        del fields["keysift"]
        if fields["use_cache"]:
            del fields["use_cache"]
        if self._auto_class is None:
            # The class is not remote code, so saving it copies no files that auto_map could name.
            fields.pop("auto_map", None)
        # PEFT and others look for sizes in this dictionary, under the names of transformers.
        sizes = {name: getattr(self.keysift, own) for name, own in self.attribute_map.items()}
        return {**fields, **sizes, **configs.to_dict(self.keysift)}

    def to_diff_dict(self) -> dict[str, Any]:
        """The content of config.json: each size once, under keysift's name."""
        fields: dict[str, Any] = super().to_diff_dict()
        return {name: value for name, value in fields.items() if name not in self.attribute_map}


def _belongs_to_transformers(name: str) -> bool:
    return name in HOST_FIELDS or name in _EXTRA_ARGUMENTS or name.startswith("_")
