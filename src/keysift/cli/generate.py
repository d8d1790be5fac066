"""Continue a prompt with a saved model; the text streams as it is made."""

import sys
from dataclasses import field
from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config
from keysift.core.errors import ConfigError, DataError
from keysift.models.sampling import Sampling
from keysift.nn.inference import Inference

_LONGEST = 2**26  # bytes of a prompt


@config
class Args:
    run: Annotated[Path, tyro.conf.Positional]
    """The directory of a saved model."""
    prompt: str | None = None
    """The text to continue."""
    prompt_file: Path | None = None
    """A file with the text to continue; - reads standard input."""
    echo: bool = False
    """Print the prompt too."""
    max_new_tokens: int = 200
    """How many tokens to add at most."""
    stop: tuple[str, ...] = ()
    """End before one of these texts."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.8))
    inference: Inference = field(default_factory=Inference)


def run(args: Args) -> None:
    from keysift.cli import output
    from keysift.models.generate import Request
    from keysift.runs import text_model

    prompt = _prompt(args)
    asked = Request(prompt=prompt, max_new_tokens=args.max_new_tokens, sampling=args.sampling, stop=args.stop)
    made = text_model.open(args.run).start([asked], inference=args.inference)
    if args.echo:
        output.write(prompt)
    try:
        for piece in made:
            output.write(piece.text)
        said = ""
    except KeyboardInterrupt:
        # What was made is kept: it is on the terminal already, but for the few characters held back.
        output.write(made.rows[0].rest())
        said = "interrupted after "
    output.write("\n")
    output.print_note(f"{said}{len(made.rows[0].tokens)} tokens, {made.tokens_per_second:.1f} tokens/s")


def _prompt(args: Args) -> str:
    if (args.prompt is None) == (args.prompt_file is None):
        raise ConfigError("say what to continue: --prompt TEXT, or --prompt-file FILE, where - reads standard input")
    if args.prompt_file is None:
        assert args.prompt is not None
        return args.prompt
    try:
        if str(args.prompt_file) == "-":
            data = sys.stdin.buffer.read(_LONGEST + 1)
        else:
            with args.prompt_file.open("rb") as file:
                data = file.read(_LONGEST + 1)
    except OSError as error:
        raise DataError(f"the prompt cannot be read ({error}); --prompt-file takes a text file") from error
    if len(data) > _LONGEST:
        raise DataError(f"{args.prompt_file} is longer than {_LONGEST:,} bytes; cut it to what the model should read")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{args.prompt_file} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}; convert it first"
        ) from error
