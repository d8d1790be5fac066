"""Tests that transformers runs on every causal model, rewritten: the package does not include its test mixins.

Each test is a contract of ModelTesterMixin or GenerationTesterMixin. `NOT_APPLICABLE` gives the reason for the others.
Saving, loading, damaged files and generation are tested in other files.
"""

import copy
import inspect
import pickle
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from keysift.nn.embedding import TiedHead
from tests.hub.keysift_models import ARCHS, loaded, saved_model
from tests.refusals import refuses

NOT_APPLICABLE = {
    "eager_matches_sdpa, flash_attn, flex": "the model's mechanism is its attention; other implementations are refused",
    "generate_with_static_cache, compile_forward": "a static cache cannot hold windows; refused, see test_generate",
    "generate_with_quant_cache, offloaded": "refused, see test_generate",
    "continuous_batching": "paged caches support full and sliding attention only",
    "feed_forward_chunking": "Multiscreen has no feed-forward block, the Transformer's is not chunked",
    "keep_in_fp32_modules": "statistics are fp32 in every type already",
    "problem_types, sequence_classification": "causal language models only",
    "can_init_all_missing_weights": "missing weights are refused, not initialised",
    "fx": "values of tensors are inspected, so symbolic tracing cannot follow",
    "tensor, pipeline, expert parallelism": "no plans are given; keysift trains with its own launcher",
    "multi_gpu": "needs several GPUs; offload to the CPU and to disk is in test_adapters",
}
TOKENS = torch.arange(48).view(2, 24)
MASK = torch.tensor([[0] * 9 + [1] * 15, [1] * 24])
pytestmark = pytest.mark.slow


class Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(tokens, use_cache=False).logits
        return logits


@pytest.fixture(params=[name for name in ARCHS if name != "layered"])  # other files have it
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return loaded(tmp_path, request.param)


@pytest.mark.parametrize("contract", NOT_APPLICABLE)
def test_contracts_that_do_not_apply(contract: str) -> None:
    pytest.skip(NOT_APPLICABLE[contract])


def test_other_implementations_are_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for implementation in ("sdpa", "flex_attention"):
        with pytest.raises(ValueError, match="does not support"):
            AutoModelForCausalLM.from_pretrained(saved_model(tmp_path), attn_implementation=implementation)


def test_initialization_and_determinism(model: Any) -> None:
    fresh = type(model)(model.config)
    own = dict(fresh.keysift.named_parameters())
    assert dict(fresh.named_parameters()).keys() == own.keys()
    assert all(parameter is own[name] for name, parameter in fresh.named_parameters())
    assert all(bool(parameter.isfinite().all()) for parameter in fresh.parameters())
    from keysift.models.registry import build

    for (name, got), expected in zip(fresh.named_parameters(), build(model.config.keysift).parameters(), strict=True):
        if got.numel() > 100:
            assert 0.7 < float((got.std() / expected.std()).detach()) < 1.4, name
    assert torch.equal(model(TOKENS).logits, model(TOKENS).logits)


def test_forward_signature(model: Any) -> None:
    assert list(inspect.signature(model.forward).parameters)[:2] == ["input_ids", "attention_mask"]


def test_outputs_as_tuple_and_as_dict(model: Any) -> None:
    options = {"output_hidden_states": True, "output_attentions": True, "labels": TOKENS}
    named = model(TOKENS, **options)
    plain = model(TOKENS, **options, return_dict=False)
    assert list(named) == ["loss", "logits", "past_key_values", "hidden_states", "attentions"]
    assert all(torch.equal(named[i], plain[i]) for i in (0, 1))
    assert all(map(torch.equal, named.hidden_states, plain[3]))


def test_hidden_states_and_attentions(model: Any) -> None:
    output = model(TOKENS, output_hidden_states=True, output_attentions=True)
    assert len(output.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(output.hidden_states[0], model.keysift.embed_rows(model.get_input_embeddings()(TOKENS)))
    assert torch.equal(model.get_output_embeddings()(output.hidden_states[-1]), output.logits)
    assert len(output.attentions) == model.config.num_hidden_layers
    assert all(weights.shape[2:] == (24, 24) for weights in output.attentions)
    assert not any(bool(weights.triu(1).any()) for weights in output.attentions)
    model.config.output_hidden_states = True
    assert len(model(TOKENS).hidden_states) == model.config.num_hidden_layers + 1


def test_loss_is_that_of_shifted_labels(model: Any) -> None:
    labels = TOKENS.clone()
    labels[0, :9] = -100
    output = model(TOKENS, attention_mask=MASK, labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
    torch.testing.assert_close(output.loss, expected)
    summed = model(TOKENS, attention_mask=MASK, labels=labels, num_items_in_batch=10).loss
    torch.testing.assert_close(summed, expected * (labels[:, 1:] != -100).sum() / 10)


def test_logits_to_keep(model: Any) -> None:
    whole = model(TOKENS).logits
    torch.testing.assert_close(model(TOKENS, logits_to_keep=3).logits, whole[:, -3:])
    torch.testing.assert_close(model(TOKENS, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])


def test_inputs_embeds(model: Any) -> None:
    embedded = model.get_input_embeddings()(TOKENS)
    assert torch.equal(model(inputs_embeds=embedded).logits, model(TOKENS).logits)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "attention_mask": torch.ones_like(TOKENS)}
    assert torch.equal(model.generate(inputs_embeds=embedded, **options), model.generate(TOKENS, **options)[:, 24:])
    with refuses("pass exactly one of input_ids and inputs_embeds"):
        model(TOKENS, inputs_embeds=embedded)
    with refuses("tokens must lie in 0..256, got 257"):
        model(torch.tensor([[257]]))
    with refuses("does not support head_mask, token_type_ids; leave it out"):
        model(TOKENS, head_mask=MASK, token_type_ids=MASK)


def test_batch_and_padding_change_nothing(model: Any) -> None:
    """With left, right or no padding, the logits of a row are those of its tokens alone."""
    alone = model(TOKENS[:1, 9:]).logits[0]
    left = model(TOKENS, attention_mask=MASK).logits[0, 9:]
    right = model(TOKENS.roll(-9, 1), attention_mask=MASK.roll(-9, 1)).logits[0, :15]
    torch.testing.assert_close(left, alone, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(right, alone, atol=2e-5, rtol=1e-5)
    positions = (MASK.cumsum(1) - 1).clamp_min(0)
    assert torch.equal(model(TOKENS, attention_mask=MASK, position_ids=positions).logits[0, 9:], left)
    with refuses("attention_mask must have 2 rows of at least 24 columns, got .2, 1, 24, 24."):
        model(TOKENS, attention_mask=torch.ones(2, 1, 24, 24))


def test_packed_documents_are_isolated(model: Any) -> None:
    packed = torch.tensor([[*range(9), *range(15)], [*range(20), *range(4)]])
    output = model(TOKENS, position_ids=packed).logits
    for row, parts in enumerate(((0, 9, 24), (0, 20, 24))):
        for begin, end in pairwise(parts):
            expected = model(TOKENS[row : row + 1, begin:end]).logits[0]
            torch.testing.assert_close(output[row, begin:end], expected, atol=2e-5, rtol=1e-5)
    with refuses("leave out keep and cache, or positions"):
        model(TOKENS, position_ids=packed, use_cache=True)
    for wrong in (packed + 1, packed * 2):
        with refuses("position_ids must count the real tokens of each row, or restart at 0"):
            model(TOKENS, position_ids=wrong)


def test_chunks_with_a_cache_equal_the_full_pass(model: Any) -> None:
    full = model(TOKENS, attention_mask=MASK).logits
    cache, output = None, []
    for begin, end in ((0, 11), (11, 12), (12, 20), (20, 24)):
        piece = model(TOKENS[:, begin:end], attention_mask=MASK[:, :end], past_key_values=cache, use_cache=True)
        cache = piece.past_key_values
        output.append(piece.logits)
    cached = torch.cat(output, 1)
    torch.testing.assert_close(cached[MASK.bool()], full[MASK.bool()], atol=2e-5, rtol=1e-5)
    assert model(TOKENS, use_cache=False).past_key_values is None


def test_training_and_gradient_checkpointing(model: Any) -> None:
    model.train()
    assert model(TOKENS).past_key_values is None
    gradients = []
    # The name since transformers 5.23, and the one before.
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    has_every_n_layers = "every_n_layers" in inspect.signature(enable).parameters
    for every in (None, 1, 2) if has_every_n_layers else (None, 1):
        if every is not None:
            options = {"every_n_layers": every} if has_every_n_layers else {}
            enable({"use_reentrant": False}, **options)
        assert model.is_gradient_checkpointing == (every is not None)
        model.zero_grad()
        calls = _record_layer_calls(model)
        model(TOKENS, labels=TOKENS, use_cache=True).loss.backward()
        # The forward pass, and the recomputed layers of the backward pass.
        assert calls == {None: [0, 1], 1: [0, 1, 1, 0], 2: [0, 1, 0]}[every]
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for recomputed in gradients[1:]:
        torch.testing.assert_close(recomputed, gradients[0])
    assert all(bool(gradient.any()) for gradient in gradients[0])
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


def _record_layer_calls(model: Any) -> list[int]:
    calls: list[int] = []
    for number, layer in enumerate(model.keysift.layers):
        layer._forward_pre_hooks.clear()
        layer.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    return calls


def test_get_set_and_resize_embeddings(model: Any, tmp_path: Path) -> None:
    from keysift.models.save import load

    before = model(TOKENS).logits
    table = model.get_input_embeddings()
    model.set_input_embeddings(table)
    assert model.keysift.embedding is table
    assert isinstance(model.get_output_embeddings(), TiedHead) == model.config.tie_word_embeddings
    model.resize_token_embeddings(300, mean_resizing=False)
    assert model.config.vocab_size == model.keysift.config.vocab_size == 300
    after = model(TOKENS).logits
    assert after.shape[-1] == 300
    torch.testing.assert_close(after[..., :257], before)
    assert 0.5 < float((table.weight[257:].std() / table.weight[:257].std()).detach()) < 2
    model(torch.tensor([[299]]))
    model.save_pretrained(tmp_path / "resized")
    assert torch.equal(load(tmp_path / "resized")(TOKENS), after)
    model.resize_token_embeddings(100)
    assert torch.equal(model(TOKENS).logits, before[..., :100])


def test_copies_and_types(model: Any, tmp_path: Path) -> None:
    expected = model(TOKENS).logits
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(TOKENS).logits, expected)
        assert copied.keysift.embedding is copied.get_input_embeddings()
        assert copied.keysift.embedding is not model.keysift.embedding
    model.save_pretrained(tmp_path / "half", max_shard_size="5KB")
    assert len(list((tmp_path / "half").glob("model-*.safetensors"))) > 1
    from transformers import AutoModelForCausalLM

    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert half(TOKENS).logits.dtype == torch.bfloat16
    assert torch.equal(half.float()(TOKENS).logits, model.to(torch.bfloat16).float()(TOKENS).logits)


def test_generate_returns_all_outputs(model: Any) -> None:
    output = model.generate(
        TOKENS,
        max_new_tokens=4,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_hidden_states=True,
        output_attentions=True,
    )
    assert len(output.scores) == len(output.logits) == len(output.hidden_states) == len(output.attentions) == 4
    assert output.past_key_values.get_seq_length() == 27
    assert [len(layer) for layer in output.hidden_states[1]] == [2] * 3


def test_export_with_dynamic_sizes_works_and_jit_trace_is_refused(model: Any) -> None:
    expected = model(TOKENS, use_cache=False).logits
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with refuses("torch.jit.trace does not record compiled kernels; use torch.export.export"):
            torch.jit.trace(Logits(model), (TOKENS,), check_trace=False)
        batch, length = torch.export.Dim("batch", max=8), torch.export.Dim("length", min=2, max=4096)
        exported = torch.export.export(Logits(model), (TOKENS,), dynamic_shapes=({0: batch, 1: length},)).module()
        torch.testing.assert_close(exported(TOKENS), expected, atol=2e-5, rtol=1e-4)
        for shape in ((1, 7), (3, 300)):
            tokens = torch.arange(shape[0] * shape[1]).view(shape) % 257
            torch.testing.assert_close(exported(tokens), model(tokens, use_cache=False).logits, atol=2e-5, rtol=1e-4)


def test_onnx_export_of_the_dense_backend(model: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from keysift.kernels.attend import force_backend

    sizes = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", min=2, max=512)}
    file = tmp_path / "model.onnx"
    with torch.no_grad(), force_backend("dense"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Logits(model), (TOKENS,), file, dynamo=True, dynamic_shapes=(sizes,), verbose=False)
    session = runtime.InferenceSession(file)
    for tokens in (TOKENS, TOKENS[:1].repeat(1, 2)):
        (actual,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
        torch.testing.assert_close(torch.from_numpy(actual), model(tokens).logits.detach(), atol=1e-4, rtol=1e-4)


def test_config_names_of_transformers(model: Any) -> None:
    sizes = model.config.to_dict()
    assert sizes["hidden_size"] == model.config.width
    assert sizes["num_attention_heads"] == model.config.num_attention_heads
    again = type(model.config)(**sizes)
    assert again.keysift == model.config.keysift
    assert "hidden_size" not in model.config.to_diff_dict()
    tied = model.config.tie_word_embeddings
    if model.config.kind.name == "transformer":
        again.tie_word_embeddings = not tied
        assert again.keysift.tied_embeddings is not tied
    else:
        again.tie_word_embeddings = True
        with refuses("reads its logits from the embedding, so tie_word_embeddings cannot be False"):
            again.tie_word_embeddings = False


def test_from_pretrained_by_keyword_and_foreign_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors about weights become errors about weights."""
    from transformers import PreTrainedModel

    from keysift.hub import MultiscreenForCausalLM

    directory = saved_model(tmp_path)
    assert MultiscreenForCausalLM.from_pretrained(pretrained_model_name_or_path=directory).config.depth == 2

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(PreTrainedModel, "_load_pretrained_model", fail)
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory$"):
        MultiscreenForCausalLM.from_pretrained(directory)
