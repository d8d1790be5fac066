"""The configs of keysift's models in transformers: keysift's own config, and what transformers keeps beside it.

    config = AutoConfig.from_pretrained("runs/first")
    config.keysift            MultiscreenConfig(depth=8, tiles=8, ...)
    config.depth              8, and so is config.num_hidden_layers, the name transformers looks for

No field is written down here: the attributes, the file and the checks are those of `keysift`.
"""

from dataclasses import fields, replace
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from keysift.core import config as configs
from keysift.models.foreign import MODEL_TYPE
from keysift.models.kinds import KINDS, Kind, ModelConfig
from keysift.models.save import HOST_FIELDS, own_fields

# What transformers passes to a config besides the content of config.json.
_PASSED = frozenset(
    (
        *("attn_implementation", "experts_implementation", "name_or_path", "num_labels", "per_layer_config"),
        *("quantization_config", "tie_last_hidden_states"),
    )
)


class _Field:
    """One field of keysift's config, read and set through the config of transformers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type[Any] | None = None) -> Any:
        return self if owner is None else getattr(owner.keysift, self.name)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.keysift = replace(owner.keysift, **{self.name: value})


class KeysiftConfig(PreTrainedConfig):  # type: ignore[misc]
    """Abstract: a subclass names the kind of model."""

    kind: ClassVar[Kind]
    has_no_defaults_at_init: ClassVar[bool] = True  # sizes have no defaults
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    def __init_subclass__(cls, **more: Any) -> None:
        for field in fields(cls.kind.config):
            setattr(cls, field.name, _Field(field.name))
        cls.model_type = f"{MODEL_TYPE}{cls.kind.name}"
        # A class without one of its own would be given one made from annotated fields, of which there are none.
        cls.__init__ = KeysiftConfig.__init__  # type: ignore[method-assign]
        super().__init_subclass__(**more)

    def __init__(self, **given: Any) -> None:
        hosts = {name: value for name, value in given.items() if _is_hosts(name)}
        ours = {name: value for name, value in own_fields(given).items() if name not in hosts}
        self.keysift: ModelConfig = configs.from_dict(self.kind.config, ours)
        self.use_cache: bool = hosts.pop("use_cache", True)
        super().__init__(**hosts)

    @classmethod
    def of(cls, config: ModelConfig) -> "KeysiftConfig":
        return cls(**configs.to_dict(config))

    @property
    def tie_word_embeddings(self) -> bool:
        """The name transformers has for it."""
        return getattr(self.keysift, "tied_embeddings", True)

    def to_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = super().to_dict()
        del told["keysift"]
        if told["use_cache"]:
            del told["use_cache"]
        return {**told, **configs.to_dict(self.keysift)}


def _is_hosts(name: str) -> bool:
    return name in HOST_FIELDS or name in _PASSED or name.startswith("_")


class MultiscreenConfig(KeysiftConfig):
    kind = KINDS.find("multiscreen")
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "tiles",
        "max_position_embeddings": "context",
    }


class TransformerConfig(KeysiftConfig):
    kind = KINDS.find("transformer")
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "max_position_embeddings": "context",
    }
