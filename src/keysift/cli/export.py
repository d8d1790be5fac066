"""Write a model as a directory that others load without keysift: files, code and model card for Hugging Face."""

from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config
from keysift.core.errors import ConfigError


@config
class Args:
    run: Annotated[Path, tyro.conf.Positional]
    """A run or a saved model."""
    out: Annotated[Path, tyro.conf.Positional]
    """The new directory."""
    hub: bool = False
    """For transformers with trust_remote_code: keysift's source goes along."""


def run(args: Args) -> None:
    from keysift.cli import output

    if not args.hub:
        raise ConfigError(
            "say for whom: --hub writes the model with its code for transformers; "
            "where keysift is installed, transformers reads the run as it is"
        )
    from keysift.hub.export import export

    files = export(args.run, args.out)
    output.print_note(
        f"{args.out}: {len(files)} files; load it with "
        f"AutoModelForCausalLM.from_pretrained({str(args.out)!r}, trust_remote_code=True)"
    )
