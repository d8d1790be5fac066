"""Bring a pretrained model here: a Hugging Face directory or a GGUF file of the Llama family becomes a saved model."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from keysift.core.config import config


@config
class Args:
    source: Annotated[Path, tyro.conf.Positional]
    """A directory with config.json and safetensors (llama, mistral, qwen2, qwen3), or a .gguf file (llama)."""
    out: Path
    """The new directory."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What the weights are stored and computed in."""
    tokenizer: Path | None = None
    """A directory with the model's tokenizer.json, if it is elsewhere."""


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.models.language import count
    from keysift.runs.importing import imported

    found = imported(args.source, args.out, dtype=args.dtype, tokenizer=args.tokenizer)
    shape = found.model.config
    output.print_note(
        f"{args.out}: transformer {shape.depth}x{shape.heads}x{shape.width}, {count(found.model):,} parameters, "
        f"context {shape.context}, {found.tokenizer.vocab_size:,} tokens; try it:\n"
        f"keysift generate {args.out} --prompt 'Once upon a time'"
    )
