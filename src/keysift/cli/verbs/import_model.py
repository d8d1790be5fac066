"""Import a pretrained model of the Llama family from a Hugging Face directory or a GGUF file."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from keysift.core.config import config
from keysift.models.model_type import check_import_source


@config
class Args:
    source: Annotated[Path, tyro.conf.Positional]
    """A directory with config.json and safetensors (llama, mistral, qwen2, qwen3, smollm3, phi3), or a .gguf file
    (llama)."""
    out: Path
    """The new directory."""
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Data type of the stored weights and of the computation."""
    tokenizer: Path | None = None
    """A directory with the tokenizer.json, if it is not with the model."""


def run(args: Args) -> None:
    check_import_source(args.source)
    from keysift.cli.terminal import output
    from keysift.models.importing import import_model
    from keysift.models.language_model import count_parameters

    imported = import_model(args.source, args.out, dtype=args.dtype, tokenizer=args.tokenizer)
    shape = imported.model.config
    output.print_note(
        f"{args.out}: transformer {shape.depth}x{shape.heads}x{shape.width}, {count_parameters(imported.model):,} "
        f"parameters, context {shape.context}, {imported.tokenizer.vocab_size:,} tokens; try it:\n"
        f"keysift generate {args.out} --prompt 'Once upon a time'"
    )
