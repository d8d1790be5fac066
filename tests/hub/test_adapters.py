"""Embeddings that are replaced or adapted (PEFT), and weights that accelerate keeps on the CPU or on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import keysift
from tests.hub.keysift_models import loaded, saved_model
from tests.refusals import refuses

pytestmark = pytest.mark.slow
TOKENS = torch.arange(48).view(2, 24)
KINDS = ("multiscreen", "softmax", "untied")


@pytest.mark.parametrize("name", KINDS)
def test_input_embeddings_are_replaced_by_a_plain_table(name: str, tmp_path: Path) -> None:
    model = loaded(tmp_path / "a", name)
    before = model(TOKENS).logits
    table = nn.Embedding.from_pretrained(model.get_input_embeddings().weight.detach().clone(), freeze=False)
    model.set_input_embeddings(table)
    assert torch.equal(model(TOKENS).logits, before)
    with torch.no_grad():
        table.weight.add_(torch.randn(table.weight.shape, generator=torch.Generator().manual_seed(0)))
    after = model(TOKENS).logits
    assert not torch.allclose(after, before)
    model.save_pretrained(tmp_path / "b")
    assert torch.equal(keysift.load(tmp_path / "b")(TOKENS), after)


def test_an_embedding_of_another_width_is_refused(tmp_path: Path) -> None:
    with refuses("an embedding of this model has 16 channels, got 10"):
        loaded(tmp_path).set_input_embeddings(nn.Embedding(257, 10))


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["embedding"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embedding": [3, 7, 40]}},
        {"target_modules": ["q_proj"], "modules_to_save": ["embedding"]},
    ],
    ids=["lora", "trainable-tokens", "modules-to-save"],
)
@pytest.mark.parametrize("name", KINDS)
def test_adapters_of_the_embedding_train_and_merge(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = loaded(tmp_path / "a", name)
    before = model(TOKENS).logits
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=4, task_type="CAUSAL_LM", **options))
    torch.testing.assert_close(tuned(TOKENS).logits, before)
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        tuned(TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
    gradients = [p.grad for key, p in tuned.named_parameters() if p.requires_grad and "embedding" in key]
    assert any(gradient is not None and bool(gradient.any()) for gradient in gradients)
    trained = tuned(TOKENS).logits
    assert not torch.allclose(trained, before)
    merged = tuned.merge_and_unload()
    torch.testing.assert_close(merged(TOKENS).logits, trained, atol=1e-4, rtol=1e-4)
    merged.save_pretrained(tmp_path / "b")
    torch.testing.assert_close(keysift.load(tmp_path / "b")(TOKENS), trained, atol=1e-4, rtol=1e-4)


def test_lora_of_an_untied_head_changes_the_logits(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = loaded(tmp_path, "untied")
    before = model(TOKENS).logits
    options = peft.LoraConfig(r=4, target_modules=["lm_head"], init_lora_weights=False)
    tuned = peft.get_peft_model(model, options)
    trained = tuned(TOKENS).logits
    assert not torch.allclose(trained, before)
    torch.testing.assert_close(tuned.merge_and_unload()(TOKENS).logits, trained, atol=1e-4, rtol=1e-4)


def test_prompt_tuning_finds_the_sizes(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    for name in KINDS:
        tuned = peft.get_peft_model(
            loaded(tmp_path / name, name), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
        )
        tuned(TOKENS, labels=TOKENS).loss.backward()
        gradient = tuned.prompt_encoder["default"].embedding.weight.grad
        assert bool(gradient.any())


# transformers 5.5 takes the device of the parameters, meta, for that of the model; 5.22 does not.
@pytest.mark.filterwarnings("ignore:You are calling .generate:UserWarning")
@pytest.mark.parametrize("where", ["cpu", "disk"])
@pytest.mark.parametrize("name", KINDS)
def test_offloaded_weights(name: str, where: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    expected = loaded(tmp_path / "a", name)
    model = loaded(tmp_path / "b", name)
    if where == "cpu":
        model = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        model = accelerate.disk_offload(model, str(tmp_path / "offload"), execution_device=torch.device("cpu"))
    assert any(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(model(TOKENS).logits, expected(TOKENS).logits)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert torch.equal(model.generate(TOKENS, **options), expected.generate(TOKENS, **options))


def test_offload_by_device_map(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM

    directory = saved_model(tmp_path / "a")
    whole = AutoModelForCausalLM.from_pretrained(directory)
    devices = {"embedding": "cpu", "lm_head": "cpu", "layers.0": "cpu", "layers.1": "disk"}
    model = AutoModelForCausalLM.from_pretrained(directory, device_map=devices, offload_folder=tmp_path / "offload")
    torch.testing.assert_close(model(TOKENS).logits, whole(TOKENS).logits)
