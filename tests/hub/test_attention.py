"""keysift's mechanisms inside transformers models."""

import warnings
from typing import Any

import pytest
import torch

from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Site
from tests.hub.transformers_models import build
from tests.refusals import refuses

TOKENS = torch.arange(12)[None]


@pytest.fixture(scope="module")
def llama() -> Any:
    import keysift.hub  # noqa: F401

    return build("llama")


def test_softmax_equals_the_models_attention(llama: Any) -> None:
    expected = llama(TOKENS).logits
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), TOKENS), dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 12])
    try:
        llama.set_attn_implementation("keysift_softmax")
        torch.testing.assert_close(llama(TOKENS).logits, expected, atol=1e-4, rtol=1e-4)
        # Left padding, which is lost unless the attention function registers a mask function.
        torch.testing.assert_close(llama(padded, attention_mask=mask).logits[:, 4:], expected, atol=1e-4, rtol=1e-4)
    finally:
        llama.set_attn_implementation("sdpa")


def test_attn_implementation_selects_the_mechanism(llama: Any) -> None:
    from transformers import AutoModelForCausalLM

    expected = llama(TOKENS).logits
    entmax = AutoModelForCausalLM.from_config(llama.config, attn_implementation="keysift_entmax15").eval()
    entmax.load_state_dict(llama.state_dict())
    actual = entmax(TOKENS).logits
    assert not torch.allclose(actual, expected, atol=1e-2)
    captured: dict[str, torch.Tensor] = {}

    def capture(module: Any, args: Any, kwargs: Any, result: Any) -> None:
        captured.setdefault("x", kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
        captured.setdefault("cos", kwargs["position_embeddings"][0])
        captured.setdefault("sin", kwargs["position_embeddings"][1])
        captured.setdefault("out", result[0])

    attention = entmax.model.layers[0].self_attn
    attention.register_forward_hook(capture, with_kwargs=True)
    entmax(TOKENS)
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, v = (
        project(captured["x"]).view(1, 12, -1, 8).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = apply_rotary_pos_emb(q, k, captured["cos"], captured["sin"])
    out = attend("entmax15", q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(captured["out"], attention.o_proj(out), atol=1e-4, rtol=1e-4)
    # With the cache of transformers, the mask selects the cached keys.
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(entmax.generate(TOKENS, **options), entmax.generate(TOKENS, use_cache=False, **options))


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS.names())
def test_every_mechanism_runs_warns_or_refuses(llama: Any, name: str) -> None:
    mechanism = MECHANISMS.find(name)
    learned = [scalar.name for scalar in mechanism.scalars if scalar.learned and scalar.follows is None]
    try:
        llama.set_attn_implementation(f"keysift_{name}")
        if mechanism.maps > 1:
            with refuses("cannot replace this model's attention: it needs 2 score maps per head"):
                llama(TOKENS)
        elif learned:
            with pytest.warns(UserWarning, match=f"learns {', '.join(learned)}, but this model was not trained"):
                assert bool(llama(TOKENS).logits.isfinite().all())
            llama.train()
            llama(TOKENS)  # no warning while training
        else:
            assert bool(llama(TOKENS).logits.isfinite().all())
    finally:
        llama.eval().set_attn_implementation("sdpa")


def test_constants_follow_the_training_length(llama: Any) -> None:
    """The bias of sigmoid is -log of the training length: 64 here, not the default of `attend`."""
    from keysift.hub.attention import _initial_scalars

    sigmoid = MECHANISMS.find("sigmoid")
    actual = _initial_scalars(
        sigmoid, llama.model.layers[0].self_attn, torch.zeros(1, 4, 2, 8), torch.zeros(1, 2, 2, 8)
    )
    assert float(actual["bias"]) == pytest.approx(float(sigmoid.scalar("bias").default(Site(context=64))))
    assert float(actual["bias"]) != pytest.approx(float(sigmoid.scalar("bias").default(Site())))


def test_unsupported_attention_options_are_refused() -> None:
    import keysift.hub  # noqa: F401

    capped = build("gemma2", "eager")
    capped.set_attn_implementation("keysift_sigmoid")
    with refuses("sigmoid cannot replace .* it does not support softcap of Gemma2Attention"):
        capped(TOKENS)
    dropping = build("llama", attention_dropout=0.5)
    dropping.set_attn_implementation("keysift_sigmoid")
    dropping(TOKENS)
    with refuses("it does not support dropout of LlamaAttention"), warnings.catch_warnings():
        dropping.train()(TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("softmax", "screening", "stick_breaking", "stick_breaking_own_key", "stick_breaking_rest", "forgetting"),
        *("stick_breaking_learned", "asentmax", "tra", "elastic_softmax", "clipped_softmax", "lssar", "null_value"),
    ],
)
def test_padding_and_caches_change_nothing(llama: Any, name: str) -> None:
    """Also of mechanisms that need distances: a mask of causality alone does not give them."""
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), TOKENS), dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 12])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    static = {"cache_implementation": "static", "disable_compile": True}
    try:
        llama.set_attn_implementation(f"keysift_{name}")
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            expected = llama(TOKENS).logits
            positions = (mask.cumsum(1) - 1).clamp_min(0)  # as generate counts them
            actual = llama(padded, attention_mask=mask, position_ids=positions).logits[:, 4:]
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
            generated = llama.generate(TOKENS, use_cache=False, **options)
            assert torch.equal(llama.generate(TOKENS, **options), generated)
            if not MECHANISMS.find(name).causal_only:
                assert torch.equal(llama.generate(TOKENS, **static, **options), generated)
            else:
                with refuses(f"{name} needs the distance of each key, .* leave cache_implementation out"):
                    llama.generate(TOKENS, **static, **options)
    finally:
        llama.set_attn_implementation("sdpa")


def test_selective_attention_runs_on_whole_texts_only(llama: Any) -> None:
    """A later token changes no earlier logit; a cached step and a padded batch are refused rather than approximated."""
    tokens = TOKENS + 1  # generate takes the padding token, 0, for padding
    expected = llama(tokens).logits
    options = {"max_new_tokens": 3, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    try:
        llama.set_attn_implementation("keysift_selective_mask")
        actual = llama(tokens, use_cache=False).logits
        assert (actual - expected).abs().max() > 1e-4
        torch.testing.assert_close(llama(tokens[:, :7], use_cache=False).logits, actual[:, :7], atol=1e-5, rtol=1e-5)
        generated = llama.generate(tokens, use_cache=False, **options)
        assert torch.equal(llama(generated, use_cache=False).logits[0, 11:-1].argmax(-1), generated[0, 12:])
        with refuses("got 1 queries for 13 keys; pass the queries and keys of the whole text"):
            llama.generate(tokens, **options)
        with refuses("selective_mask needs texts without padding, windows or packing"):
            llama(tokens, attention_mask=torch.tensor([[0] * 2 + [1] * 10]), use_cache=False)
    finally:
        llama.set_attn_implementation("sdpa")


def test_an_encoder_sees_later_tokens() -> None:
    import keysift.hub  # noqa: F401

    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    encoder = transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes)).eval()
    expected = encoder(TOKENS).last_hidden_state
    encoder.set_attn_implementation("keysift_softmax")
    torch.testing.assert_close(encoder(TOKENS).last_hidden_state, expected, atol=1e-5, rtol=1e-5)
    encoder.set_attn_implementation("keysift_stick_breaking")
    with refuses("stick_breaking is defined for keys at or before the query"):
        encoder(TOKENS)


def test_empty_slots_of_a_static_cache_are_not_read() -> None:
    """transformers may leave out the mask of the first call, whose queries are at the first slots."""
    from keysift.hub.attention import _attention_function

    attention, module = _attention_function(MECHANISMS.find("softmax")), torch.nn.Identity().eval()
    q, k, v = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4)
    expected = attention(module, q, k[:, :, :3], v[:, :, :3], None)[0]
    torch.testing.assert_close(attention(module, q, k, v, None)[0], expected)
