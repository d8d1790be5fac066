"""Export a model for Hugging Face: weights, code and model card, loadable without keysift."""

from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config
from keysift.core.errors import ConfigError
from keysift.models.model_type import CONFIG, read_keysift_config


@config
class Args:
    run: Annotated[Path, tyro.conf.Positional]
    """A run or a saved model."""
    out: Annotated[Path, tyro.conf.Positional]
    """The new directory."""
    hub: bool = False
    """Include keysift's source, for transformers with trust_remote_code."""


def run(args: Args) -> None:
    from keysift.cli.terminal import output

    if not args.hub:
        raise ConfigError(
            "choose a target: --hub exports the model with its code for transformers; "
            "where keysift is installed, transformers reads the run directly"
        )
    read_keysift_config(args.run / CONFIG)
    from keysift.hub.export import export

    files = export(args.run, args.out)
    output.print_note(
        f"{args.out}: {len(files)} files; load it with "
        f"AutoModelForCausalLM.from_pretrained({str(args.out)!r}, trust_remote_code=True)"
    )
