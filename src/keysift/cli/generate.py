"""Continue a prompt with a saved model; the text streams as it is made."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from keysift.core.config import config


@config
class Args:
    run: Annotated[Path, tyro.conf.Positional]
    """The directory of a saved model."""
    prompt: str
    """The text to continue."""
    max_new_tokens: int = 200
    """How many tokens to add at most."""
    temperature: float = 0.8
    """How freely to choose; 0 takes the most likely token."""
    top_k: int | None = None
    """Choose among the k most likely tokens."""
    top_p: float = 1.0
    """Choose among the fewest tokens that together have this probability."""
    min_p: float = 0.0
    """Choose among tokens at least this fraction as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Make tokens that already occurred less likely; 1 is off."""
    stop: tuple[str, ...] = ()
    """End before one of these texts."""
    seed: int = 0
    """The same seed gives the same text."""
    expand_windows_beyond: int | None = None
    """Training length: tiles whose window is longer look back without end."""
    rope_factor: float = 1.0
    """Divide positions by this before RoPE."""


def run(args: Args) -> None:
    from keysift.cli.stream import TextStream
    from keysift.data.tokenizer import load_tokenizer
    from keysift.models.generate import generate
    from keysift.models.sample import Sampling
    from keysift.models.save import load
    from keysift.nn.inference import Inference

    sampling = Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        seed=args.seed,
    )
    inference = Inference(expand_windows_beyond=args.expand_windows_beyond, rope_factor=args.rope_factor)
    model = load(args.run).eval()
    tokenizer = load_tokenizer(args.run)
    stream = TextStream(tokenizer.decode, args.stop, sys.stdout)
    try:
        result = generate(
            model,
            [tokenizer.encode(args.prompt) or [tokenizer.end_id]],
            max_tokens=args.max_new_tokens,
            sampling=sampling,
            inference=inference,
            end_id=tokenizer.end_id,
            stop=args.stop,
            decode=tokenizer.decode,
            on_token=lambda row, token: stream.add(token),
        )
    except KeyboardInterrupt:
        # What was made is kept: it is on the terminal already, but for the few characters held back.
        stream.finish()
        sys.stderr.write(f"interrupted after {stream.tokens} tokens\n")
        return
    stream.finish()
    sys.stderr.write(f"{stream.tokens} tokens, {result.tokens_per_second:.1f} tokens/s\n")
