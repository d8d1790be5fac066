"""Trainer, accelerate, PEFT, pipelines and device maps work with a keysift model as with any other model."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.data.sources import find_source
from keysift.data.tokenizers.bytes import Bytes
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.models.registry import build, configure
from keysift.models.save import save
from tests.hub.keysift_models import loaded, saved_model

pytestmark = pytest.mark.slow
LENGTH = 64
ARCHS = {"multiscreen": MultiscreenArch.psi(4), "transformer": TransformerArch(depth=2, heads=4, width=32)}


@pytest.fixture(params=ARCHS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Untrained model for the bytes tokenizer."""
    from transformers import AutoModelForCausalLM

    import keysift.hub  # noqa: F401

    config = configure(ARCHS[request.param], vocab_size=Bytes.vocab_size, context=LENGTH)
    save(build(config, torch.Generator().manual_seed(0)), tmp_path / "untrained")
    return AutoModelForCausalLM.from_pretrained(tmp_path / "untrained")


def packed_rows(rows: int) -> list[dict[str, list[int]]]:
    """Training rows of LENGTH tokens: documents of the built-in corpus, joined by end tokens and cut."""
    tokenizer = Bytes()
    texts = (document.text[:2000] for document in islice(find_source("stdlib").documents(), rows))
    ids = [token for text in texts for token in (*tokenizer.encode(text), tokenizer.end_id)]
    pieces = [ids[start : start + LENGTH] for start in range(0, len(ids) - LENGTH, LENGTH)][:rows]
    return [{"input_ids": row, "labels": row} for row in pieces]


def make_trainer(model: Any, folder: Path, **overrides: Any) -> Any:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments, default_data_collator

    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        max_steps=20,
        logging_steps=20,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"learning_rate": 1e-2, "save_strategy": "no", **overrides},
    )
    rows = packed_rows(160)
    return Trainer(
        model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:16], data_collator=default_data_collator
    )


def test_trainer_reduces_the_loss_and_saves(model: Any, tmp_path: Path) -> None:
    trainer = make_trainer(model, tmp_path / "out", gradient_checkpointing=True, gradient_accumulation_steps=2)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.5, (before, after)
    trainer.save_model(tmp_path / "saved")
    tokens = torch.tensor([packed_rows(1)[0]["input_ids"]])
    assert torch.equal(keysift.load(tmp_path / "saved")(tokens), model.eval()(tokens).logits)


def test_resumed_trainer_reaches_the_same_weights(model: Any, tmp_path: Path) -> None:
    """Trainer loads checkpoints directly into the module, without from_pretrained: parameter names must match."""
    from transformers import AutoModelForCausalLM

    resumed_model = AutoModelForCausalLM.from_pretrained(tmp_path / "untrained")
    uninterrupted = make_trainer(model, tmp_path / "out", save_strategy="steps", save_steps=10)
    uninterrupted.train()
    resumed = make_trainer(resumed_model, tmp_path / "out", save_strategy="steps", save_steps=10)
    resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-10"))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(resumed_model.state_dict()[name], value, msg=name)


@pytest.mark.parametrize("targets", [["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"], "all-linear"])
def test_lora_reduces_the_loss_and_merges(model: Any, targets: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    frozen = {name: value.clone() for name, value in model.state_dict().items()}
    tuned = peft.get_peft_model(
        model, peft.LoraConfig(r=8, lora_alpha=16, target_modules=targets, task_type="CAUSAL_LM")
    )
    trainer = make_trainer(tuned, tmp_path / "out")
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before - 0.1, (before, after)
    tuned.eval().save_pretrained(tmp_path / "adapter")
    tokens = torch.tensor([packed_rows(1)[0]["input_ids"]])
    expected = tuned(tokens).logits

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "untrained")
    assert all(torch.equal(value, frozen[name]) for name, value in base.state_dict().items())
    merged = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    torch.testing.assert_close(merged.eval()(tokens).logits, expected, atol=1e-4, rtol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(keysift.load(tmp_path / "merged")(tokens), expected, atol=1e-4, rtol=1e-4)


def test_accelerate_reduces_the_loss(model: Any) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.tensor([row["input_ids"] for row in packed_rows(64)])
    prepared, optimizer, batches = accelerator.prepare(
        model.train(), optimizer, torch.utils.data.DataLoader(rows, batch_size=8)
    )
    losses = []
    for batch in batches:
        loss = prepared(batch, labels=batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.2, losses


def test_pipeline_generates_the_same_text_as_keysift(tmp_path: Path) -> None:
    from transformers import pipeline

    directory = saved_model(tmp_path)
    generator = pipeline("text-generation", model=str(directory), device="cpu")
    texts = ["def ", "a longer prompt, so that the first is padded: "]
    options = {"max_new_tokens": 12, "do_sample": False, "return_full_text": False}
    actual = [outputs[0]["generated_text"] for outputs in generator(texts, batch_size=2, **options)]
    assert actual == keysift.open(directory).generate(texts, max_new_tokens=12)


def test_device_map_gives_the_same_logits(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    tokens = torch.arange(24)[None]
    placed = loaded(tmp_path / "a", device_map="auto")
    assert torch.equal(placed(tokens).logits, loaded(tmp_path / "b")(tokens).logits)


def test_transformers_loads_a_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    from keysift.cli.main import parse
    from keysift.cli.verbs.train import run

    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"def f{number}(x):\n    return x + {number}\n" for number in range(500)))
    sizes = ["--psi", "2", "--context", "16", "--batch-tokens", "32", "--steps", "4"]
    run(parse(["train", "--data", str(text), "--out", str(tmp_path / "run"), *sizes]))
    from transformers import AutoModelForCausalLM

    import keysift.hub

    run_model = keysift.open(tmp_path / "run")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "run")("def g(", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    assert tokens["input_ids"].tolist() == [run_model.tokenizer.encode("def g(")]
    assert torch.equal(model(**tokens).logits, run_model.model(tokens["input_ids"]))
    assert model.generation_config.eos_token_id == run_model.tokenizer.end_id
