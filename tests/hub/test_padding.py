"""Padding on either side: `generate` continues every text, and attention weights stand in the columns of their keys."""

from pathlib import Path
from typing import Any

import pytest
import torch

from keysift.models.generate import generate
from tests.hub.keysift_models import ARCHS, loaded
from tests.refusals import refuses

PROMPTS = [[5, 6, 7, 200, 9, 5, 6], [100, 3], list(range(40, 75))]
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=ARCHS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(tmp_path_factory.mktemp("model"), request.param)


def padded(prompts: list[list[int]], side: str) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    rows, real = [], []
    for prompt in prompts:
        pad = [0] * (longest - len(prompt))
        rows.append(pad + prompt if side == "left" else prompt + pad)
        real.append(pad + [1] * len(prompt) if side == "left" else [1] * len(prompt) + pad)
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(real)}


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"num_beams": 3}])
def test_generation_continues_right_padded_prompts(model: Any, options: dict[str, Any]) -> None:
    inputs = padded(PROMPTS, "right")
    generated = model.generate(**inputs, **OPTIONS, **options)
    width = inputs["input_ids"].shape[1]
    assert torch.equal(generated[:, :width], inputs["input_ids"])
    if "num_beams" in options:
        expected = model.generate(**padded(PROMPTS, "left"), **OPTIONS, **options)[:, width:].tolist()
    else:
        expected = [row.tokens for row in generate(model.keysift, PROMPTS, max_new_tokens=12).rows]
    assert generated[:, width:].tolist() == expected


def test_assisted_decoding_accepts_drafts_with_the_pad_token(model: Any) -> None:
    prompt = torch.tensor([PROMPTS[0] * 3])
    options = {**OPTIONS, "eos_token_id": 256}
    expected = model.generate(prompt, **options)
    for pad in set(expected[0, prompt.shape[1] :].tolist()):
        options["pad_token_id"] = pad
        for drafts in ({"assistant_model": model}, {"prompt_lookup_num_tokens": 5}, {"assistant_early_exit": 1}):
            if "assistant_early_exit" in drafts and isinstance(getattr(model.config, "mechanism", ""), tuple):
                continue  # a config with a mechanism per layer has no shorter depth
            assert torch.equal(model.generate(prompt, **options, **drafts), expected), (pad, drafts)


@pytest.mark.parametrize("side", ["left", "right"])
def test_attention_weights_stand_in_the_columns_of_their_keys(model: Any, side: str) -> None:
    """Whole, in pieces that leave the windows, and with every row padded."""
    for prompts in (PROMPTS, PROMPTS[:2]):
        inputs = padded(prompts, side)
        if prompts is not PROMPTS:  # every row is padded, on both sides
            inputs = {name: torch.nn.functional.pad(x, (2, 1)) for name, x in inputs.items()}
        tokens, mask = inputs["input_ids"], inputs["attention_mask"]
        width = tokens.shape[1]
        whole = model(**inputs, output_attentions=True, use_cache=False).attentions
        cached = model(**inputs, output_attentions=True).attentions
        cache = model.new_cache()
        for begin, end in ((0, width - 4), (width - 4, width - 3), (width - 3, width)):
            piece = model(
                tokens[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, output_attentions=True
            ).attentions
            for layer, weights in enumerate(piece):
                assert weights.shape[2:] == (end - begin, end)
                real = mask[:, None, begin:end, None].bool()
                expected = whole[layer][:, :, begin:end, :end]
                torch.testing.assert_close(weights * real, expected * real, atol=1e-5, rtol=1e-4)
        for layer, weights in enumerate(cached):
            real = mask[:, None, :, None].bool()
            torch.testing.assert_close(weights * real, whole[layer] * real, atol=1e-5, rtol=1e-4)
            assert bool((weights * real != 0).any())


def test_attention_weights_carry_gradients(model: Any) -> None:
    model.train()
    try:
        model.gradient_checkpointing_enable()
        outputs = model(torch.tensor([PROMPTS[2]]), output_attentions=True)
        sum(weights.square().sum() for weights in outputs.attentions).backward()
        gradients = [parameter.grad for name, parameter in model.named_parameters() if "q_proj" in name]
        assert all(gradient is not None and bool(gradient.any()) for gradient in gradients)
    finally:
        model.zero_grad()
        model.gradient_checkpointing_disable()
        model.eval()


def test_continuous_batching_is_refused_at_once(tmp_path: Path) -> None:
    model = loaded(tmp_path)
    for call in (model.generate_batch, model.init_continuous_batching, model.continuous_batching_context_manager):
        with refuses("continuous batching needs a paged cache, which cannot hold windows of different lengths"):
            call([[1, 2, 3]])
