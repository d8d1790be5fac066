"""See the difference: two models learn to recall in minutes and are asked beyond their training length."""

from pathlib import Path

from keysift.core.config import config
from keysift.core.errors import ConfigError


@config
class Args:
    out: Path | None = None
    """Folder of the demo, out/demo if left out; with --text its page, out/demo.html."""
    steps: int | None = None
    """Training steps of each model; 1,600 if left out."""
    text: bool = False
    """Instead: one key in different company, through every mechanism, then a small model that learns to write."""
    seconds: float | None = None
    """With --text: how long the small model is trained, 90 if left out; 0 leaves it out."""
    json: bool = False
    """Print records as JSON instead of tables; with --text that of the first part, and nothing is trained."""


def run(args: Args) -> int:
    if args.text:
        from keysift.cli.demo_text import text_demo

        if args.steps is not None:
            raise ConfigError("--steps is of the demo without --text, which is trained for --seconds")
        seconds = 90.0 if args.seconds is None else args.seconds
        text_demo(args.out or Path("out/demo.html"), seconds=seconds, json=args.json)
        return 0
    from keysift.cli.demo_recall import recall_demo

    if args.seconds is not None:
        raise ConfigError("--seconds is of keysift demo --text; without it two models are trained for --steps")
    return recall_demo(args.out or Path("out/demo"), steps=args.steps, json=args.json, named=args.out is not None)
