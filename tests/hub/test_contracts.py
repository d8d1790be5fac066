"""What transformers' own suite asks of every causal model, restated: its mixins are not part of the installed package.

Each test is a contract of ModelTesterMixin or GenerationTesterMixin; `LEFT_OUT` names those that do not apply, and why.
Saving, loading, damaged files and generation have files of their own.
"""

import copy
import inspect
import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hub.ours import ARCHS, kept, loaded
from tests.refusals import refuses

LEFT_OUT = {
    "eager_matches_sdpa, flash_attn, flex": "the model's mechanism is its attention; other implementations are refused",
    "generate_with_static_cache, compile_forward": "a static cache cannot hold windows; refused, see test_generate",
    "generate_with_quant_cache, offloaded": "refused, see test_generate",
    "continuous_batching": "paged caches know full and sliding attention only",
    "feed_forward_chunking": "Multiscreen has no feed-forward block, the Transformer's is not chunked",
    "keep_in_fp32_modules": "statistics are fp32 in every type already",
    "problem_types, sequence_classification": "causal language models only",
    "can_init_all_missing_weights": "missing weights are refused, not drawn",
    "torchscript, export, fx": "tensors are looked at, so the graph is not static",
    "tensor, pipeline, expert parallelism": "no plans are given; keysift trains with its own launcher",
    "disk_offload, multi_gpu": "need a GPU or a model larger than memory",
}
TOKENS = torch.arange(48).view(2, 24)
MASK = torch.tensor([[0] * 9 + [1] * 15, [1] * 24])
pytestmark = pytest.mark.slow


@pytest.fixture(params=ARCHS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return loaded(tmp_path, request.param)


@pytest.mark.parametrize("contract", LEFT_OUT)
def test_contracts_left_out(contract: str) -> None:
    pytest.skip(LEFT_OUT[contract])


def test_other_implementations_are_refused(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for implementation in ("sdpa", "flex_attention"):
        with pytest.raises(ValueError, match="does not support"):
            AutoModelForCausalLM.from_pretrained(kept(tmp_path), attn_implementation=implementation)


def test_initialization_and_determinism(model: Any) -> None:
    made = type(model)(model.config)
    own = dict(made.keysift.named_parameters())
    assert dict(made.named_parameters()).keys() == own.keys()
    assert all(parameter is own[name] for name, parameter in made.named_parameters())
    assert all(bool(parameter.isfinite().all()) for parameter in made.parameters())
    from keysift.models.kinds import build

    for (name, got), expected in zip(made.named_parameters(), build(model.config.keysift).parameters(), strict=True):
        if got.numel() > 100:
            assert 0.7 < float((got.std() / expected.std()).detach()) < 1.4, name
    assert torch.equal(model(TOKENS).logits, model(TOKENS).logits)


def test_forward_signature(model: Any) -> None:
    assert list(inspect.signature(model.forward).parameters)[:2] == ["input_ids", "attention_mask"]


def test_outputs_as_tuple_and_as_dict(model: Any) -> None:
    asked = {"output_hidden_states": True, "output_attentions": True, "labels": TOKENS}
    named = model(TOKENS, **asked)
    plain = model(TOKENS, **asked, return_dict=False)
    assert list(named) == ["loss", "logits", "past_key_values", "hidden_states", "attentions"]
    assert all(torch.equal(named[i], plain[i]) for i in (0, 1))
    assert all(map(torch.equal, named.hidden_states, plain[3]))


def test_hidden_states_and_attentions(model: Any) -> None:
    found = model(TOKENS, output_hidden_states=True, output_attentions=True)
    assert len(found.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(found.hidden_states[0], model.get_input_embeddings()(TOKENS))
    assert torch.equal(model.keysift.readout(found.hidden_states[-1]), found.logits)
    assert len(found.attentions) == model.config.num_hidden_layers
    assert all(weights.shape[2:] == (24, 24) for weights in found.attentions)
    assert not any(bool(weights.triu(1).any()) for weights in found.attentions)
    model.config.output_hidden_states = True
    assert len(model(TOKENS).hidden_states) == model.config.num_hidden_layers + 1


def test_loss_is_that_of_shifted_labels(model: Any) -> None:
    labels = TOKENS.clone()
    labels[0, :9] = -100
    found = model(TOKENS, attention_mask=MASK, labels=labels)
    expected = torch.nn.functional.cross_entropy(found.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
    torch.testing.assert_close(found.loss, expected)
    summed = model(TOKENS, attention_mask=MASK, labels=labels, num_items_in_batch=10).loss
    torch.testing.assert_close(summed, expected * (labels[:, 1:] != -100).sum() / 10)


def test_logits_to_keep(model: Any) -> None:
    whole = model(TOKENS).logits
    torch.testing.assert_close(model(TOKENS, logits_to_keep=3).logits, whole[:, -3:])
    torch.testing.assert_close(model(TOKENS, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]])


def test_inputs_embeds(model: Any) -> None:
    embedded = model.get_input_embeddings()(TOKENS)
    assert torch.equal(model(inputs_embeds=embedded).logits, model(TOKENS).logits)
    asked = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "attention_mask": torch.ones_like(TOKENS)}
    assert torch.equal(model.generate(inputs_embeds=embedded, **asked), model.generate(TOKENS, **asked)[:, 24:])
    with refuses("pass either input_ids or inputs_embeds"):
        model(TOKENS, inputs_embeds=embedded)
    with refuses("tokens must lie in 0..256, got 257"):
        model(torch.tensor([[257]]))
    with refuses("cannot follow head_mask, token_type_ids; leave it out"):
        model(TOKENS, head_mask=MASK, token_type_ids=MASK)


def test_batch_and_padding_change_nothing(model: Any) -> None:
    """Left, right, or none: a row's logits are those of its tokens alone."""
    alone = model(TOKENS[:1, 9:]).logits[0]
    left = model(TOKENS, attention_mask=MASK).logits[0, 9:]
    right = model(TOKENS.roll(-9, 1), attention_mask=MASK.roll(-9, 1)).logits[0, :15]
    torch.testing.assert_close(left, alone, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(right, alone, atol=2e-5, rtol=1e-5)
    positions = (MASK.cumsum(1) - 1).clamp_min(0)
    assert torch.equal(model(TOKENS, attention_mask=MASK, position_ids=positions).logits[0, 9:], left)
    with refuses("attention_mask must have 2 rows of at least 24 columns, got .2, 1, 24, 24."):
        model(TOKENS, attention_mask=torch.ones(2, 1, 24, 24))


def test_packed_documents_do_not_see_each_other(model: Any) -> None:
    packed = torch.tensor([[*range(9), *range(15)], [*range(20), *range(4)]])
    found = model(TOKENS, position_ids=packed).logits
    for row, parts in enumerate(((0, 9, 24), (0, 20, 24))):
        for begin, end in pairwise(parts):
            expected = model(TOKENS[row : row + 1, begin:end]).logits[0]
            torch.testing.assert_close(found[row, begin:end], expected, atol=2e-5, rtol=1e-5)
    with refuses("leave keep and cache out, or positions"):
        model(TOKENS, position_ids=packed, use_cache=True)
    for wrong in (packed + 1, packed * 2):
        with refuses("position_ids must count the real tokens of each row, or restart at 0"):
            model(TOKENS, position_ids=wrong)


def test_cache_in_pieces_equals_the_whole(model: Any) -> None:
    whole = model(TOKENS, attention_mask=MASK).logits
    cache, found = None, []
    for begin, end in ((0, 11), (11, 12), (12, 20), (20, 24)):
        piece = model(TOKENS[:, begin:end], attention_mask=MASK[:, :end], past_key_values=cache, use_cache=True)
        cache = piece.past_key_values
        found.append(piece.logits)
    together = torch.cat(found, 1)
    torch.testing.assert_close(together[MASK.bool()], whole[MASK.bool()], atol=2e-5, rtol=1e-5)
    assert model(TOKENS, use_cache=False).past_key_values is None


def test_training_and_gradient_checkpointing(model: Any) -> None:
    model.train()
    assert model(TOKENS).past_key_values is None
    gradients = []
    newer = "every_n_layers" in inspect.signature(model.gradient_checkpointing_enable).parameters
    for every in (None, 1, 2) if newer else (None, 1):
        if every is not None:
            asked = {"every_n_layers": every} if newer else {}
            model.gradient_checkpointing_enable({"use_reentrant": False}, **asked)
        assert model.is_gradient_checkpointing == (every is not None)
        model.zero_grad()
        calls = _calls(model)
        model(TOKENS, labels=TOKENS, use_cache=True).loss.backward()
        # The forward alone, and again on the way back for the layers that forgot.
        assert calls == {None: [0, 1], 1: [0, 1, 1, 0], 2: [0, 1, 0]}[every]
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])
    assert all(bool(gradient.any()) for gradient in gradients[0])
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


def _calls(model: Any) -> list[int]:
    calls: list[int] = []
    for number, layer in enumerate(model.keysift.layers):
        layer._forward_pre_hooks.clear()
        layer.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    return calls


def test_embeddings_are_got_set_and_resized(model: Any, tmp_path: Path) -> None:
    from keysift.models.save import load

    before = model(TOKENS).logits
    table = model.get_input_embeddings()
    model.set_input_embeddings(table)
    assert model.keysift.embedding is table
    assert (model.get_output_embeddings() is None) == model.config.tie_word_embeddings
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
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(TOKENS).logits, expected)
        assert twin.keysift.embedding is twin.get_input_embeddings()
        assert twin.keysift.embedding is not model.keysift.embedding
    model.save_pretrained(tmp_path / "half", max_shard_size="5KB")
    assert len(list((tmp_path / "half").glob("model-*.safetensors"))) > 1
    from transformers import AutoModelForCausalLM

    half = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    assert half(TOKENS).logits.dtype == torch.bfloat16
    assert torch.equal(half.float()(TOKENS).logits, model.to(torch.bfloat16).float()(TOKENS).logits)


def test_generate_returns_what_is_asked(model: Any) -> None:
    found = model.generate(
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
    assert len(found.scores) == len(found.logits) == len(found.hidden_states) == len(found.attentions) == 4
    assert found.past_key_values.get_seq_length() == 27
    assert [len(layer) for layer in found.hidden_states[1]] == [2] * 3
