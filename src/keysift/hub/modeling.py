"""keysift's models as causal language models of transformers.

The class of transformers holds the modules of keysift's own model (`model.keysift`) under the same names, so both read
and write the same files, and what one changes the other sees; it computes nothing itself. What transformers adds is
around it: loss, outputs, caches for `generate`, gradient checkpointing.

Letters: B batch, T tokens, D model width, N vocabulary.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, cast

from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from keysift.core.errors import DataError, ShapeError, UnsupportedError
from keysift.hub.cache import WindowCache
from keysift.hub.configuration import KeysiftConfig, MultiscreenConfig, TransformerConfig
from keysift.hub.placing import placed
from keysift.models.kinds import build
from keysift.models.language import LanguageModel
from keysift.models.save import CONFIG, read_kind
from keysift.models.tensor_files import Shards
from keysift.nn.cache import Reading
from keysift.nn.inference import Inference
from keysift.nn.store import Store
from keysift.nn.tap import trace

# transformers hands much to every model; the loss takes these, and those would change what is computed.
_FOR_LOSS = ("num_items_in_batch", "shift_labels", "ignore_index")
_FULL = "dynamic_full"  # what transformers 5.5 asks of an assistant's cache: that all of it can be taken back
_REFUSED = ("encoder_hidden_states", "head_mask", "token_type_ids")
_ELSEWHERE = ("state_dict", "subfolder", "variant")  # with one of these the weights are not where they usually are


class KeysiftForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """Abstract: a subclass names its config. `inference` chooses e.g. window expansion, for every call and cache."""

    config_class: ClassVar[type[KeysiftConfig]]
    base_model_prefix = ""  # the names of the weights are keysift's
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["Layer", "Block"]
    _skip_keys_device_placement: ClassVar[list[str]] = ["past_key_values"]

    def __init__(self, config: KeysiftConfig, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        model = build(config.keysift)
        # One table of submodules for both: a module that PEFT or resizing replaces here is replaced there.
        self._modules = model._modules
        self._held = (model,)  # in a tuple, so that it is no submodule itself
        self.inference = Inference()
        self.gradient_checkpointing = False
        self._checkpoint_every = 1
        self.post_init()

    @property
    def keysift(self) -> LanguageModel:
        """keysift's own model, with these weights: for evaluation, the lens, and saving."""
        return self._held[0]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: WindowCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **more: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits B T N, or those of the last `logits_to_keep` tokens, or of the columns it names.

        attention_mask       B T, or B and all columns so far: 0 for padding, which is not seen and takes no position
        position_ids         as the mask says; without a mask, documents that start again at 0 do not see each other
        past_key_values      a WindowCache, as an earlier call or `new_cache` gave it
        output_hidden_states the residual stream before the first layer and after each one
        output_attentions    the weights of each layer, B H T S; with a cache, S is what the longest window holds
        """
        asked = [name for name in _REFUSED if more.get(name) is not None]
        if asked:
            raise UnsupportedError(f"{type(self).__name__} cannot follow {', '.join(asked)}; leave it out")
        if (input_ids is None) == (inputs_embeds is None):
            raise ShapeError("pass either input_ids or inputs_embeds, not both and not neither")
        tokens = input_ids if inputs_embeds is None else inputs_embeds[..., 0]
        assert tokens is not None
        lengths = past_key_values.past.lengths if isinstance(past_key_values, WindowCache) else None
        keep, positions = placed(tokens, attention_mask, position_ids, lengths)
        cache = self._cache_for_call(past_key_values, use_cache, packed=positions is not None)
        past = None if cache is None else cache.rows(len(tokens))
        model = self.keysift
        if input_ids is not None:
            model.check(input_ids, keep)
        inference = None if past is not None else self.inference
        reading = model.reading(tokens, positions=positions, keep=keep, cache=past, inference=inference)

        x_BTD: Tensor = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        streams = [x_BTD]
        with trace(
            model, *(["layers.*.relevance"] if self._asked("output_attentions", output_attentions) else [])
        ) as seen:
            x_BTD = model.through(x_BTD, reading, past, self._run(streams))
        if cache is not None:
            cache.count(tokens.shape[1], keep)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = model.readout(x_BTD[:, kept])
        loss = None
        if labels is not None:
            for_loss = {name: value for name, value in more.items() if name in _FOR_LOSS}
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **for_loss)
        found = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=cache,
            hidden_states=tuple(streams) if self._asked("output_hidden_states", output_hidden_states) else None,
            attentions=tuple(seen.values()) if self._asked("output_attentions", output_attentions) else None,
        )
        return found if self._asked("return_dict", return_dict) else found.to_tuple()

    def _asked(self, name: str, given: bool | None) -> bool:
        return bool(getattr(self.config, name) if given is None else given)

    def _run(self, streams: list[Tensor]) -> Callable[[nn.Module, Tensor, Reading, Store | None], Tensor]:
        def run(layer: nn.Module, x_BTD: Tensor, reading: Reading, store: Store | None) -> Tensor:
            # Checkpointing forgets what is inside a layer and computes it again on the way back.
            forgets = self.gradient_checkpointing and self.training and (len(streams) - 1) % self._checkpoint_every == 0
            call = self._gradient_checkpointing_func if forgets else _call
            streams.append(call(layer.__call__, x_BTD, reading, store))
            return streams[-1]

        return run

    def _set_gradient_checkpointing(
        self, enable: bool = True, *args: Any, every_n_layers: int = 1, **more: Any
    ) -> None:
        self._checkpoint_every = every_n_layers
        super()._set_gradient_checkpointing(enable, *args, **more)

    def new_cache(self, *, spare: int = 0) -> WindowCache:
        """An empty cache for any number of rows; `spare` more entries per window let `crop` go that far back."""
        return WindowCache(self.keysift, spare=spare, inference=self.inference)

    def _cache_for_call(self, given: Any, use_cache: bool | None, packed: bool) -> WindowCache | None:
        if given is not None and not isinstance(given, WindowCache):
            raise UnsupportedError(
                f"a {type(given).__name__} cannot hold windows of different lengths; leave past_key_values out, "
                f"or pass model.new_cache()"
            )
        if given is not None:
            return given
        wanted = (self.config.use_cache and not self.training and not packed) if use_cache is None else use_cache
        return self.new_cache() if wanted and not (self.gradient_checkpointing and self.training) else None

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *args: Any, **more: Any
    ) -> None:
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic", _FULL):
            raise UnsupportedError(
                f"a {kind} cache cannot hold windows of different lengths; leave cache_implementation out: "
                f"keysift's cache is bounded by the windows already"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = self.new_cache(spare=_drafted(generation_config, generation_mode))

    def get_input_embeddings(self) -> nn.Embedding:
        return cast(nn.Embedding, self._modules["embedding"])

    def set_input_embeddings(self, value: nn.Module) -> None:
        self._modules["embedding"] = value

    def get_output_embeddings(self) -> nn.Module | None:
        """None if the table is read on the way out as well: then there is nothing to resize or tie beside it."""
        return self._modules.get("lm_head")

    def set_output_embeddings(self, value: nn.Module) -> None:
        self._modules["lm_head"] = value

    def resize_token_embeddings(self, *args: Any, **more: Any) -> Any:
        made = super().resize_token_embeddings(*args, **more)
        self.keysift.config = self.config.keysift
        return made

    def _init_weights(self, module: nn.Module) -> None:
        # keysift's model drew its own weights as it was built; only a table that resizing makes is left to fill.
        if isinstance(module, nn.Embedding) and module is not self.get_input_embeddings():
            nn.init.normal_(module.weight, std=float(self.get_input_embeddings().weight.detach().std()))

    @classmethod
    def from_pretrained(cls, name: Any, *args: Any, output_loading_info: bool = False, **more: Any) -> Any:
        """As in transformers, but weights that are missing, left over or misshapen are an error, not a warning."""
        if name is not None and os.path.isdir(name) and not any(more.get(one) for one in _ELSEWHERE):
            # Before transformers meets it: its errors say where it stumbled, not what to do.
            if more.get("config") is None:
                read_kind(Path(name) / CONFIG)
            Shards(Path(name))
        try:
            model, info = super().from_pretrained(name, *args, output_loading_info=True, **more)
        except (SafetensorError, RuntimeError) as error:
            raise DataError(
                f"the weights of {name} cannot be read or do not fit config.json ({error}); "
                f"copy both files again from one source"
            ) from error
        faults = [f"{key} is missing" for key in sorted(info["missing_keys"])]
        faults += [f"{key} is not a weight of this model" for key in sorted(info["unexpected_keys"])]
        if faults:
            more_faults = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise DataError(
                f"{name}: the weights do not fit config.json: {'; '.join(faults[:3])}{more_faults}; "
                f"copy both files from one source"
            )
        return (model, info) if output_loading_info else model


def _call(layer: Callable[..., Tensor], *args: Any) -> Tensor:
    return layer(*args)


def _drafted(generation_config: Any, mode: Any) -> int:
    """How many tokens assisted decoding may take back. An assistant model drafts as many as it likes."""
    assists = getattr(generation_config, "is_assistant", False) or generation_config.cache_implementation == _FULL
    if mode != "assisted_generation" and not assists:
        return 0
    return int(generation_config.prompt_lookup_num_tokens or generation_config.max_length)


class MultiscreenForCausalLM(KeysiftForCausalLM):
    config_class = MultiscreenConfig


class TransformerForCausalLM(KeysiftForCausalLM):
    config_class = TransformerConfig
