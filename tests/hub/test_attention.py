"""keysift's mechanisms inside other people's models."""

import warnings
from typing import Any

import pytest
import torch

from keysift.kernels.attend import attend
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Site
from tests.hub.models import build
from tests.refusals import refuses

TOKENS = torch.arange(12)[None]


@pytest.fixture(scope="module")
def llama() -> Any:
    import keysift.hub  # noqa: F401

    return build("llama")


def test_softmax_is_the_models_own_attention(llama: Any) -> None:
    expected = llama(TOKENS).logits
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), TOKENS), dim=1)
    mask = torch.tensor([[0] * 4 + [1] * 12])
    try:
        llama.set_attn_implementation("keysift_softmax")
        torch.testing.assert_close(llama(TOKENS).logits, expected, atol=1e-4, rtol=1e-4)
        # Left padding, which an attention function without a mask function of its own loses.
        torch.testing.assert_close(llama(padded, attention_mask=mask).logits[:, 4:], expected, atol=1e-4, rtol=1e-4)
    finally:
        llama.set_attn_implementation("sdpa")


def test_one_argument_switches_the_mechanism(llama: Any) -> None:
    from transformers import AutoModelForCausalLM

    expected = llama(TOKENS).logits
    other = AutoModelForCausalLM.from_config(llama.config, attn_implementation="keysift_entmax15").eval()
    other.load_state_dict(llama.state_dict())
    found = other(TOKENS).logits
    assert not torch.allclose(found, expected, atol=1e-2)
    seen: dict[str, torch.Tensor] = {}

    def keep(module: Any, args: Any, kwargs: Any, result: Any) -> None:
        seen.setdefault("x", kwargs["hidden_states"] if "hidden_states" in kwargs else args[0])
        seen.setdefault("cos", kwargs["position_embeddings"][0])
        seen.setdefault("sin", kwargs["position_embeddings"][1])
        seen.setdefault("out", result[0])

    attention = other.model.layers[0].self_attn
    attention.register_forward_hook(keep, with_kwargs=True)
    other(TOKENS)
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, v = (
        project(seen["x"]).view(1, 12, -1, 8).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = apply_rotary_pos_emb(q, k, seen["cos"], seen["sin"])
    out = attend("entmax15", q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(seen["out"], attention.o_proj(out), atol=1e-4, rtol=1e-4)
    # A cache of transformers' own: the mask says what is seen.
    asked = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(other.generate(TOKENS, **asked), other.generate(TOKENS, use_cache=False, **asked))


@pytest.mark.slow
@pytest.mark.parametrize("name", MECHANISMS.names())
def test_every_mechanism_runs_warns_or_refuses(llama: Any, name: str) -> None:
    mechanism = MECHANISMS.find(name)
    learned = [scalar.name for scalar in mechanism.scalars if scalar.learned and scalar.follows is None]
    try:
        llama.set_attn_implementation(f"keysift_{name}")
        if mechanism.maps > 1:
            with refuses("cannot take the place of this model's attention: it reads 2 maps for each head"):
                llama(TOKENS)
        elif learned:
            with pytest.warns(UserWarning, match=f"learns {', '.join(learned)}, which this model was never trained"):
                assert bool(llama(TOKENS).logits.isfinite().all())
            llama.train()
            llama(TOKENS)  # and while it is trained, nothing is said
        else:
            assert bool(llama(TOKENS).logits.isfinite().all())
    finally:
        llama.eval().set_attn_implementation("sdpa")


def test_constants_follow_the_models_own_length(llama: Any) -> None:
    """sigmoid's bias is -log of the trained length: 64 here, not the length a lone call assumes."""
    from keysift.hub.attention import _at_start

    sigmoid = MECHANISMS.find("sigmoid")
    found = _at_start(sigmoid, llama.model.layers[0].self_attn, torch.zeros(1, 4, 2, 8), torch.zeros(1, 2, 2, 8))
    assert float(found["bias"]) == pytest.approx(float(sigmoid.scalar("bias").default(Site(context=64))))
    assert float(found["bias"]) != pytest.approx(float(sigmoid.scalar("bias").default(Site())))


def test_what_a_mechanism_cannot_follow_is_refused() -> None:
    import keysift.hub  # noqa: F401

    capped = build("gemma2", "eager")
    capped.set_attn_implementation("keysift_sigmoid")
    with refuses("sigmoid cannot take the place of .* it knows no softcap, which Gemma2Attention asks for"):
        capped(TOKENS)
    dropping = build("llama", attention_dropout=0.5)
    dropping.set_attn_implementation("keysift_sigmoid")
    dropping(TOKENS)
    with refuses("it knows no dropout, which LlamaAttention asks for"), warnings.catch_warnings():
        dropping.train()(TOKENS)
