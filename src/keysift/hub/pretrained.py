"""Base class of keysift's transformers models: shared modules, embeddings, and loading with checks."""

import os
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel

from keysift.core.errors import DataError, ShapeError
from keysift.core.listing import first_three
from keysift.hub.configuration import KeysiftConfig
from keysift.models.language_model import LanguageModel
from keysift.models.model_type import CONFIG
from keysift.models.registry import build
from keysift.models.save import read_model_config
from keysift.models.tensor_files import Shards
from keysift.nn.embedding import TiedHead, UnitEmbedding

_OTHER_FILES = ("state_dict", "subfolder", "variant")  # with one of these the weights are in other files


class KeysiftPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """Abstract base; a subclass sets its config."""

    config_class: ClassVar[type[KeysiftConfig]]
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["Layer", "Block"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]

    def _build(self) -> None:
        """Build keysift's model and use its modules."""
        model = build(self.config.keysift)
        self._modules = model._modules
        self._keysift = (model,)  # a tuple, so that it is not registered as a submodule

    def _share(self, other: "KeysiftPreTrainedModel") -> None:
        """Use the modules of another model: a module that PEFT or resizing replaces here is replaced there too."""
        self._modules = other._modules
        self._keysift = other._keysift

    @property
    def keysift(self) -> LanguageModel:
        """The keysift model with these weights, for evaluation, the lens and saving."""
        return self._keysift[0]

    def _wants(self, name: str, argument: bool | None) -> bool:
        return bool(getattr(self.config, name) if argument is None else argument)

    def get_input_embeddings(self) -> nn.Embedding:
        return cast(nn.Embedding, self._modules["embedding"])

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding. A plain table for a Multiscreen keeps the learned lengths of the present one."""
        present = self._modules["embedding"]
        if isinstance(present, UnitEmbedding) and type(value) is nn.Embedding:
            if value.weight.shape[1] != present.weight.shape[1]:
                raise ShapeError(
                    f"an embedding of this model has {present.weight.shape[1]} channels, got {value.weight.shape[1]}"
                )
            with torch.device("meta"):
                table = UnitEmbedding(*value.weight.shape)
            table.weight, table.s_E, table.s_F = value.weight, present.s_E, present.s_F
            value = table
        self._modules["embedding"] = value

    def get_output_embeddings(self) -> nn.Module:
        """The output head. With tied embeddings its weight is computed from the embedding."""
        return cast(nn.Module, self._modules["lm_head"])

    def set_output_embeddings(self, value: nn.Module) -> None:
        self._modules["lm_head"] = value

    def resize_token_embeddings(self, *args: Any, **more: Any) -> Any:
        embeddings = super().resize_token_embeddings(*args, **more)
        self.keysift.config = self.config.keysift
        return embeddings

    def _get_resized_lm_head(self, old_lm_head: nn.Module, *args: Any, **more: Any) -> nn.Module:
        if isinstance(old_lm_head, TiedHead):
            return old_lm_head  # it follows the embedding
        return cast(nn.Module, super()._get_resized_lm_head(old_lm_head, *args, **more))

    def _init_weights(self, module: nn.Module) -> None:
        # keysift initializes its weights when it builds the model; only a table added by resizing is initialized here.
        if isinstance(module, nn.Embedding) and module is not self.get_input_embeddings():
            nn.init.normal_(module.weight, std=float(self.get_input_embeddings().weight.detach().std()))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Any,
        *args: Any,
        output_loading_info: bool = False,
        ignore_mismatched_sizes: bool = False,
        **more: Any,
    ) -> Any:
        """As in transformers, but missing, unexpected or misshapen weights raise an error instead of a warning."""
        name = pretrained_model_name_or_path
        if name is not None and os.path.isdir(name) and not any(more.get(option) for option in _OTHER_FILES):
            # Check before transformers does, because its errors do not say what to do.
            if more.get("config") is None:
                read_model_config(Path(name) / CONFIG)
            Shards(Path(name))
        try:
            # Shapes are compared below, where the message can name the weights.
            model, info = super().from_pretrained(
                name, *args, output_loading_info=True, ignore_mismatched_sizes=True, **more
            )
        except SafetensorError as error:
            raise DataError(f"the weights of {name} cannot be read ({error}); copy the files again") from error
        faults = [f"{key} is missing" for key in sorted(info["missing_keys"])]
        faults += [f"{key} is not a weight of this model" for key in sorted(info["unexpected_keys"])]
        if not ignore_mismatched_sizes:
            faults += [
                f"{key} is {tuple(held)}, the config says {tuple(expected)}"
                for key, held, expected in sorted(info["mismatched_keys"])
            ]
        if faults:
            raise DataError(
                f"{name}: the weights do not fit config.json: {first_three(faults)}; copy both files from one source"
            )
        return (model, info) if output_loading_info else model
