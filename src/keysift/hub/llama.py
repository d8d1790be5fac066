"""A Llama of transformers with the weights of a Transformer of this library, so that a benchmark can time both."""

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from keysift.core.errors import UnsupportedError
from keysift.models.language_model import LanguageModel
from keysift.models.llama_config import their_name
from keysift.models.transformer import Transformer


class TransformersLlama:
    """The model as a LlamaForCausalLM, in the same dtype, with SDPA. It decodes a text with transformers' own cache.

    Raises UnsupportedError for a model that is not a Llama with tied embeddings.
    """

    def __init__(self, model: LanguageModel) -> None:
        config = model.config
        if not (isinstance(model, Transformer) and config.tied_embeddings and config.final_gain):
            raise UnsupportedError("the model must be a Transformer with tied_embeddings and final_gain; set both")
        weights = {their_name(name): parameter.detach().clone() for name, parameter in model.named_parameters()}
        llama = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.width,
                intermediate_size=len(weights["model.layers.0.mlp.gate_proj.weight"]),
                num_hidden_layers=config.depth,
                num_attention_heads=config.heads,
                num_key_value_heads=config.key_heads or config.heads,
                max_position_embeddings=config.context,
                rms_norm_eps=config.norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=True,
                attn_implementation="sdpa",
            )
        )
        self._llama = llama.to(model.embedding.weight.dtype).eval()
        self._llama.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
        self._cache = DynamicCache(config=self._llama.config)

    def read(self, tokens_1T: Tensor) -> Tensor:
        """Start a text. Logits 1 1 N of its last token."""
        self._cache = DynamicCache(config=self._llama.config)
        return self.step(tokens_1T)

    @torch.inference_mode()
    def step(self, tokens_1T: Tensor) -> Tensor:
        """Append tokens to the text. Logits 1 1 N of the last one."""
        output = self._llama(input_ids=tokens_1T, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        logits: Tensor = output.logits
        return logits
