"""Generate text from a prompt with a saved model, streaming it."""

import sys
from dataclasses import field
from pathlib import Path
from typing import Annotated

import tyro

from keysift.cli.flags.command_line import decode_argument
from keysift.core.config import config
from keysift.core.errors import ConfigError, DataError
from keysift.models.model_type import CONFIG, read_keysift_config
from keysift.models.sampling_settings import Sampling
from keysift.nn.inference import Inference

_MAX_PROMPT_BYTES = 2**26


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
    """Maximum number of tokens to generate."""
    stop: tuple[str, ...] = ()
    """Stop before any of these texts."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.8))
    inference: Inference = field(default_factory=Inference)


def run(args: Args) -> None:
    prompt, stop = _prompt(args), tuple(map(decode_argument, args.stop))
    read_keysift_config(args.run / CONFIG)
    from keysift.cli.terminal import output
    from keysift.models import text_model
    from keysift.models.generate import Request

    request = Request(prompt=prompt, max_new_tokens=args.max_new_tokens, sampling=args.sampling, stop=stop)
    generation = text_model.open(args.run).start([request], inference=args.inference)
    if args.echo:
        output.write(prompt)
    try:
        for piece in generation:
            output.write(piece.text)
        status = ""
    except KeyboardInterrupt:
        # Also print the last few characters, which were held back in case they begin a stop text.
        output.write(generation.rows[0].rest())
        status = "interrupted after "
    output.write("\n")
    output.print_note(f"{status}{len(generation.rows[0].tokens)} tokens, {generation.tokens_per_second:.1f} tokens/s")


def _prompt(args: Args) -> str:
    if (args.prompt is None) == (args.prompt_file is None):
        raise ConfigError("give a prompt: --prompt TEXT or --prompt-file FILE (- reads standard input)")
    if args.prompt_file is None:
        assert args.prompt is not None
        return decode_argument(args.prompt)
    try:
        if str(args.prompt_file) == "-":
            data = sys.stdin.buffer.read(_MAX_PROMPT_BYTES + 1)
        else:
            with args.prompt_file.open("rb") as file:
                data = file.read(_MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise DataError(f"the prompt cannot be read ({error}); --prompt-file takes a text file") from error
    if len(data) > _MAX_PROMPT_BYTES:
        raise DataError(
            f"{args.prompt_file} is longer than {_MAX_PROMPT_BYTES:,} bytes; cut it to what the model should read"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{args.prompt_file} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}; convert it first"
        ) from error
