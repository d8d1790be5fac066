"""TRL trains keysift's models: supervised fine-tuning, DPO and GRPO (installed by `make test-hub`)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.hub.keysift_models import loaded, saved_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
KINDS = ("multiscreen", "softmax", "untied")
TEXTS = [{"text": f"def f{number}(x): return x + {number}"} for number in range(8)]
PAIRS = [{"prompt": "def f(", "chosen": f"x): return {number}", "rejected": "zq zq zq"} for number in range(8)]
COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 2,
    "learning_rate": 1e-2,
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
}


@pytest.fixture(params=KINDS)
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """A model and its tokenizer."""
    pytest.importorskip("trl")
    from transformers import AutoTokenizer

    directory = saved_model(tmp_path / "tokens", request.param)
    return loaded(tmp_path / "model", request.param), AutoTokenizer.from_pretrained(directory)


def _train(trainer: Any, model: Any) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses
    assert all(torch.isfinite(torch.tensor(loss)) for loss in losses)
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert "embedding.weight" in changed
    assert any(name.startswith("layers.0.") for name in changed)


def test_sft(setting: tuple[Any, Any], tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = setting
    tokens = tokenizer(TEXTS[0]["text"], return_tensors="pt")["input_ids"]
    expected = float(model(tokens, labels=tokens).loss)
    options = SFTConfig(output_dir=str(tmp_path / "out"), max_length=64, **COMMON)
    trainer = SFTTrainer(model=model, args=options, train_dataset=Dataset.from_list(TEXTS), processing_class=tokenizer)
    # The fused head of TRL multiplies hidden states and the weight of the head: the loss is that of the logits.
    assert float(trainer.model(input_ids=tokens, labels=tokens, fused_lm_head=True).loss) == pytest.approx(
        expected, rel=1e-4
    )
    _train(trainer, model)


def test_dpo(setting: tuple[Any, Any], tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    model, tokenizer = setting
    options = DPOConfig(output_dir=str(tmp_path / "out"), max_length=64, **COMMON)
    trainer = DPOTrainer(model=model, args=options, train_dataset=Dataset.from_list(PAIRS), processing_class=tokenizer)
    _train(trainer, model)


def test_grpo(setting: tuple[Any, Any], tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def count_letters(completions: list[str], **_: Any) -> list[float]:
        return [float(sum(letter.isalpha() for letter in text)) + 0.1 * len(text) for text in completions]

    model, tokenizer = setting
    options = GRPOConfig(
        output_dir=str(tmp_path / "out"), num_generations=4, max_completion_length=8, beta=0.0, **COMMON
    )
    trainer = GRPOTrainer(
        model=model,
        args=options,
        reward_funcs=count_letters,
        train_dataset=Dataset.from_list([{"prompt": pair["prompt"]} for pair in PAIRS]),
        processing_class=tokenizer,
    )
    _train(trainer, model)
