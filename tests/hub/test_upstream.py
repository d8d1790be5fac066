"""transformers' own tests of every causal model, on keysift's models.

The package transformers does not include its tests. Give the path of a checkout of the installed version:

    TRANSFORMERS_TESTS=/path/to/transformers python -m pytest tests/hub/test_upstream.py

Runs ModelTesterMixin and GenerationTesterMixin, which need the package parameterized. `BY_DESIGN` lists the tests that
must fail, with reasons.
"""

import importlib
import os
import unittest
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tests
from tests.hub.keysift_models import ARCHS

CHECKOUT = os.environ.get("TRANSFORMERS_TESTS")
if CHECKOUT is None:
    pytest.skip("TRANSFORMERS_TESTS names no checkout of transformers", allow_module_level=True)
tests.__path__.append(str(Path(CHECKOUT) / "tests"))  # their modules import each other as tests.*

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of models that their modules import
    mixins: Any = importlib.import_module("tests.test_modeling_common")

import keysift.hub as hub  # noqa: E402
from keysift.models.registry import configure  # noqa: E402
from keysift.nn.block import Block  # noqa: E402
from keysift.nn.tile import Layer  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
_TIED = "a Multiscreen reads its logits from the embedding; tie_word_embeddings=False is refused"
BY_DESIGN = {
    "both": {
        "test_inherits_generation_mixin": "the class inherits GenerationMixin through KeysiftForCausalLM",
        "test_correct_missing_keys": "a file of the backbone holds the output head too, so nothing is missing",
        "test_model_weights_reload_no_missing_tied_weights": "missing weights are refused",
    },
    "multiscreen": {
        "test_load_save_without_tied_weights": _TIED,
        "test_resize_embeddings_untied": _TIED,
        "test_resize_embeddings_untied_no_reinit_on_post_init": _TIED,
        "test_model_get_set_embeddings": "an embedding of another width is refused",
    },
}
# The model itself checkpoints keysift's layers. The mixins look for this class to count the calls of a layer.
mixins.GradientCheckpointingLayer = (mixins.GradientCheckpointingLayer, Layer, Block)
VOCABULARY, LENGTH, BATCH = 99, 7, 13


class ModelTester:
    """The sizes and inputs that the mixins ask for."""

    batch_size = BATCH
    seq_length = LENGTH
    is_training = True

    def __init__(self, name: str, config_class: Any) -> None:
        arch: Any = ARCHS[name]
        self.config = configure(arch, vocab_size=VOCABULARY, context=64)
        self.config_class = config_class
        self.hidden_size = arch.width
        self.num_hidden_layers = arch.depth
        self.num_attention_heads = self.get_config().num_attention_heads

    def get_config(self) -> Any:
        config = self.config_class.of(self.config)
        config.pad_token_id, config.bos_token_id, config.eos_token_id = 0, 1, 2
        return config

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        tokens = mixins.ids_tensor([BATCH, LENGTH], VOCABULARY)
        return self.get_config(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _check_cache(self: Any, batch_size: int, past_key_values: Any, seq_length: int | None, config: Any) -> None:
    """Instead of the shapes of keys and values: the layers of a WindowCache are ring buffers of different lengths."""
    assert isinstance(past_key_values, hub.WindowCache)
    assert len(past_key_values) == config.num_hidden_layers
    assert (past_key_values.past.batch, past_key_values.get_seq_length()) == (batch_size, seq_length)


def _case(name: str, config_class: Any, backbone: Any, causal: Any) -> type[unittest.TestCase]:
    """A class with every test of both mixins, for a model."""
    # The mixins find out from these names which class has a loss.
    mixins.MODEL_MAPPING_NAMES = {**mixins.MODEL_MAPPING_NAMES, name: backbone.__name__}
    mixins.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES = {**mixins.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, name: causal.__name__}

    def set_up(self: Any) -> None:
        self.model_tester = ModelTester(name, config_class)

    body: dict[str, Any] = {
        "setUp": set_up,
        "all_model_classes": (backbone, causal),
        "all_generative_model_classes": (causal,),
        "_check_past_key_values_for_generate": _check_cache,
    }
    bases = (mixins.ModelTesterMixin, mixins.GenerationTesterMixin, unittest.TestCase)
    for test, reason in (BY_DESIGN["both"] | BY_DESIGN.get(name, {})).items():
        body[test] = _must_fail(test, reason, bases)
    return type(f"Test_{name}", bases, body)


def _must_fail(test: str, reason: str, bases: tuple[type, ...]) -> Any:
    theirs = next(getattr(base, test) for base in bases if hasattr(base, test))

    def run(self: Any) -> None:
        theirs(self)

    return pytest.mark.xfail(reason=reason, strict=True)(run)


TestMultiscreen = _case("multiscreen", hub.MultiscreenConfig, hub.MultiscreenModel, hub.MultiscreenForCausalLM)
TestTransformer = _case("untied", hub.TransformerConfig, hub.TransformerModel, hub.TransformerForCausalLM)
