"""Small keysift models in directories that both keysift and transformers can load."""

from pathlib import Path
from typing import Any

import torch

from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.bytes import Bytes
from keysift.data.tokenizers.load import save_tokenizer
from keysift.models.architecture import Arch, MultiscreenArch, TransformerArch
from keysift.models.language_model import LanguageModel
from keysift.models.registry import build, configure
from keysift.models.save import save

ARCHS: dict[str, Arch] = {
    "multiscreen": MultiscreenArch(depth=2, tiles=3, width=16, key_width=4, value_width=8),
    "softmax": TransformerArch(depth=2, heads=4, width=16, key_heads=2),
    "untied": TransformerArch(
        depth=2, heads=4, width=16, tied_embeddings=False, final_gain=True, attention_bias="qkv", head_width=6
    ),
    "mixed": TransformerArch(depth=2, heads=4, width=16, mechanism=("softmax_sink", "differential_v1")),
    # A value other than the default in every field that says how a layer sees positions.
    "layered": TransformerArch(
        depth=4,
        heads=4,
        width=16,
        key_heads=2,
        mechanism=("softmax_sink", "differential_v1", "forgetting", "stick_breaking"),
        window=(6, 0, 7, 5),
        kept=2,
        position=("rope", "alibi", "none", "p_rope"),
        rope_share=0.5,
        rope_theta=100.0,
        rope_rates="yarn:factor=4,original=16",
    ),
    "pro": TransformerArch(
        depth=2,
        heads=4,
        width=16,
        key_heads=2,
        mechanism="forgetting+output_norm+output_gate",
        position="none",
        qk_norm=True,
        qk_gains="per_head",
        shift="both",
    ),
}
CONTEXT = 24


def small_model(name: str, vocab_size: int = 257) -> LanguageModel:
    """Windows of several lengths, one longer than the training length; weights scaled up so that logits differ."""
    generator = torch.Generator().manual_seed(3)
    model = build(configure(ARCHS[name], vocab_size=vocab_size, context=CONTEXT), generator)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(9 if name == "multiscreen" and key.startswith("layers") else 3)
            if key.endswith("s_w"):
                parameter.copy_(torch.tensor([1.5, 2.5, 3.5]))
            if key.endswith("s_r"):
                parameter.fill_(3.0)  # wide acceptance: most keys are accepted
            if key.endswith("s_O"):
                parameter.fill_(2.0)  # attention outweighs the token itself
    return model.eval()


def saved_model(path: Path, name: str = "multiscreen", tokenizer: Tokenizer | None = None) -> Path:
    """A directory with the model and its tokenizer, and keysift.hub imported."""
    import keysift.hub  # noqa: F401

    tokenizer = tokenizer or Bytes()
    save(small_model(name, tokenizer.vocab_size), path)
    save_tokenizer(tokenizer, path)
    return path


def loaded(path: Path, name: str = "multiscreen", **options: Any) -> Any:
    """The same model through transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(saved_model(path, name), **options)
