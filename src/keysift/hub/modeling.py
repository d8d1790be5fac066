"""keysift's models as transformers models: the backbone, and the causal language model.

The transformers class holds the modules of keysift's model (`model.keysift`) under the same names. So both read and
write the same files, and a change through one is visible in the other. All layers are computed by keysift; these
classes add loss, output objects, caches for `generate`, and gradient checkpointing.

Letters: B batch, T tokens, D model width, N vocabulary.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from keysift.core.errors import ShapeError, UnsupportedError
from keysift.hub.attentions import collect_weights, weights_by_column
from keysift.hub.cache import WindowCache
from keysift.hub.inputs import keep_and_positions, last_real_columns
from keysift.hub.offload import offloaded_parameters
from keysift.hub.pretrained import KeysiftPreTrainedModel
from keysift.nn.cache import AttentionContext
from keysift.nn.hooks import has_hooks
from keysift.nn.inference import Inference
from keysift.nn.layer_cache import LayerCache

# Of the arguments that transformers passes to every model, the loss uses these.
_FOR_LOSS = ("num_items_in_batch", "shift_labels", "ignore_index")
_FULL = "dynamic_full"  # transformers 5.5: the cache of an assistant model, which must be fully croppable
_UNSUPPORTED = ("encoder_hidden_states", "head_mask", "token_type_ids")


class KeysiftModel(KeysiftPreTrainedModel):
    """The backbone: tokens to hidden states. `inference` sets e.g. window expansion for every call and cache.

    It also holds the weights of the output head, so that its files are those of the causal language model.
    """

    def __init__(self, config: Any, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        self._build()
        self.inference = Inference()
        self.gradient_checkpointing = False
        self._checkpoint_every = 1
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: WindowCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **more: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """The last hidden state B T D, which the output head turns into logits.

        attention_mask       B T, or B by all columns so far: 0 marks padding, which is hidden and has no position
        position_ids         consecutive, or without a mask restarting at 0: packed documents, hidden from each other
        past_key_values      a WindowCache, from an earlier call or `new_cache`
        inputs_embeds        B T D, rows of `get_input_embeddings()` instead of tokens
        output_hidden_states the residual stream before the first layer and after each one, the last hidden state last
        output_attentions    the weights of each layer, B H T S; S counts all columns so far, padding included
        """
        if torch.jit.is_tracing() and not torch.compiler.is_compiling():  # type: ignore[attr-defined, no-untyped-call]
            raise UnsupportedError("torch.jit.trace does not record compiled kernels; use torch.export.export")
        unsupported = [name for name in _UNSUPPORTED if more.get(name) is not None]
        if unsupported:
            raise UnsupportedError(f"{type(self).__name__} does not support {', '.join(unsupported)}; leave it out")
        if (input_ids is None) == (inputs_embeds is None):
            raise ShapeError("pass exactly one of input_ids and inputs_embeds")
        tokens = input_ids if inputs_embeds is None else inputs_embeds[..., 0]
        assert tokens is not None
        lengths = past_key_values.past.lengths if isinstance(past_key_values, WindowCache) else None
        keep, positions = keep_and_positions(tokens, attention_mask, position_ids, lengths)
        cache = self._cache_for_call(past_key_values, use_cache, packed=positions is not None)
        own_cache = None if cache is None else cache.rows(len(tokens))
        model = self.keysift
        if input_ids is not None:
            model.check_tokens(input_ids, keep)
        inference = None if own_cache is not None else self.inference
        context = model.attention_context(tokens, positions=positions, keep=keep, cache=own_cache, inference=inference)

        with_attentions = self._wants("output_attentions", output_attentions)
        rows_BTD = self.get_input_embeddings()(input_ids) if inputs_embeds is None else inputs_embeds
        with offloaded_parameters(model.embedding), collect_weights(model, with_attentions) as weights:
            x_BTD = model.first_stream(rows_BTD)
            streams = [x_BTD]
            x_BTD = model.run_layers(x_BTD, context, own_cache, self._run(streams, with_attentions))
            last_BTD = model.final_hidden(x_BTD)
        if cache is not None:
            cache.count(tokens.shape[1], keep)
            weights = [weights_by_column(x, cache, layer, context) for layer, x in enumerate(weights)]
        streams[-1] = last_BTD
        output = BaseModelOutputWithPast(
            last_hidden_state=last_BTD,
            past_key_values=cache,
            hidden_states=tuple(streams) if self._wants("output_hidden_states", output_hidden_states) else None,
            attentions=tuple(weights) if with_attentions else None,
        )
        return output if self._wants("return_dict", return_dict) else output.to_tuple()

    def decode(self, input_ids: Tensor | None, attention_mask: Tensor | None, cache: Any) -> Tensor | None:
        """Logits of one token per row from keysift's compiled step; None where it does not apply."""
        early_exit = self.config.num_hidden_layers != len(self.keysift.layers)
        if input_ids is None or not isinstance(cache, WindowCache) or early_exit or has_hooks(self):
            return None
        if input_ids.ndim != 2 or input_ids.shape[1] != 1 or torch.compiler.is_compiling():
            return None
        keep, _ = keep_and_positions(input_ids, attention_mask, None, None)
        if keep is not None:
            return None
        logits = self.keysift.decode(input_ids, cache=cache.rows(len(input_ids)))
        if logits is not None:
            cache.count(1, None)
        return logits

    def _run(
        self, streams: list[Tensor], with_attentions: bool
    ) -> Callable[[nn.Module, Tensor, AttentionContext, LayerCache | None], Tensor]:
        depth = self.config.num_hidden_layers  # early exit lowers it for a while

        def run(layer: nn.Module, x_BTD: Tensor, context: AttentionContext, layer_cache: LayerCache | None) -> Tensor:
            if len(streams) > depth:
                return x_BTD
            # Checkpointing discards the activations inside a layer and recomputes them in the backward pass. Weights
            # that are returned would be formed in the first pass only.
            checkpoints = self.gradient_checkpointing and self.training and not with_attentions
            checkpoints = checkpoints and (len(streams) - 1) % self._checkpoint_every == 0
            call = self._gradient_checkpointing_func if checkpoints else _call
            streams.append(call(layer.__call__, x_BTD, context, layer_cache))
            return streams[-1]

        return run

    def _set_gradient_checkpointing(
        self, enable: bool = True, *args: Any, every_n_layers: int = 1, **more: Any
    ) -> None:
        self._checkpoint_every = every_n_layers
        super()._set_gradient_checkpointing(enable, *args, **more)

    def new_cache(self, *, spare: int = 0) -> WindowCache:
        """An empty cache for any number of rows; `spare` extra entries per window are for `crop`."""
        with offloaded_parameters(*self.keysift.layer_scalars()):
            return WindowCache(self.keysift, spare=spare, inference=self.inference)

    def _cache_for_call(self, cache: Any, use_cache: bool | None, packed: bool) -> WindowCache | None:
        if cache is not None and not isinstance(cache, WindowCache):
            raise UnsupportedError(
                f"a {type(cache).__name__} cannot hold windows of different lengths; leave past_key_values out, "
                f"or pass model.new_cache()"
            )
        if cache is not None:
            return cache
        wanted = (self.config.use_cache and not self.training and not packed) if use_cache is None else use_cache
        return self.new_cache() if wanted and not (self.gradient_checkpointing and self.training) else None


class KeysiftForCausalLM(KeysiftPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """Abstract base; a subclass sets its config and its backbone.

    `model.model`, also `model.base_model`, is the backbone with the same modules.
    """

    backbone_class: ClassVar[type[KeysiftModel]]

    def __init__(self, config: Any, *args: Any, **more: Any) -> None:
        super().__init__(config, *args, **more)
        backbone = self.backbone_class(config)
        self._share(backbone)
        self._backbone = (backbone,)  # a tuple, so that it is not registered as a submodule
        self.post_init()

    @property
    def model(self) -> KeysiftModel:
        """The backbone. Its modules are those of this model, so no weight has a second name."""
        return self._backbone[0]

    @property
    def inference(self) -> Inference:
        return self.model.inference

    @inference.setter
    def inference(self, value: Inference) -> None:
        self.model.inference = value

    @property
    def gradient_checkpointing(self) -> bool:
        return self.model.gradient_checkpointing

    def _set_gradient_checkpointing(self, *args: Any, **more: Any) -> None:
        self.model._set_gradient_checkpointing(*args, **more)

    def train(self, mode: bool = True) -> Self:
        self.model.training = mode
        super().train(mode)
        return self

    def new_cache(self, *, spare: int = 0) -> WindowCache:
        """An empty cache for any number of rows; `spare` extra entries per window are for `crop`."""
        return self.model.new_cache(spare=spare)

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
        """Logits B T N: of all tokens, the last `logits_to_keep` tokens, or the columns in the tensor `logits_to_keep`.

        The logits of padding to the right of a text are those of its last token, so that `generate` continues it.
        `KeysiftModel.forward` describes the other arguments.
        """
        plain = inputs_embeds is None and labels is None and position_ids is None and isinstance(logits_to_keep, int)
        wants_more = any(
            self._wants(name, given)
            for name, given in (
                ("output_hidden_states", output_hidden_states),
                ("output_attentions", output_attentions),
            )
        )
        if plain and not wants_more:
            logits = self.model.decode(input_ids, attention_mask, past_key_values)
            if logits is not None:
                output = CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)
                return output if self._wants("return_dict", return_dict) else output.to_tuple()
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
            **more,
        )
        x_BTD = last_real_columns(outputs.last_hidden_state, attention_mask)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        with offloaded_parameters(self.keysift.embedding):
            logits = self.get_output_embeddings()(x_BTD[:, kept])
        loss = None
        if labels is not None:
            for_loss = {name: value for name, value in more.items() if name in _FOR_LOSS}
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **for_loss)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
        return output if self._wants("return_dict", return_dict) else output.to_tuple()

    @wraps(GenerationMixin.prepare_inputs_for_generation)  # transformers looks at the names of its parameters
    def prepare_inputs_for_generation(self, *args: Any, **more: Any) -> dict[str, Any]:
        """As in transformers, without position_ids: the mask and the cache determine the positions of a text."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(*args, **more)
        inputs.pop("position_ids", None)
        return inputs

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *args: Any, **more: Any
    ) -> None:
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic", _FULL):
            raise UnsupportedError(
                f"a {kind} cache cannot hold windows of different lengths; leave cache_implementation out: "
                f"keysift's cache is already bounded by the windows"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = self.new_cache(spare=_draft_length(generation_config, generation_mode))

    def init_continuous_batching(self, *args: Any, **more: Any) -> Any:
        raise UnsupportedError(
            "continuous batching needs a paged cache, which cannot hold windows of different lengths; use "
            "generate with a batch of prompts"
        )

    generate_batch = init_continuous_batching
    continuous_batching_context_manager = init_continuous_batching


def _call(layer: Callable[..., Tensor], *args: Any) -> Tensor:
    return layer(*args)


def _draft_length(generation_config: Any, mode: Any) -> int:
    """The number of tokens that assisted decoding may remove; an assistant model may draft any number."""
    assists = getattr(generation_config, "is_assistant", False) or generation_config.cache_implementation == _FULL
    if mode != "assisted_generation" and not assists:
        return 0
    return int(generation_config.prompt_lookup_num_tokens or generation_config.max_length)
