"""Train two small models on recall in minutes and evaluate them beyond their training length."""

from pathlib import Path

from keysift.core.config import config
from keysift.core.errors import ConfigError


@config
class Args:
    out: Path | None = None
    """Folder of the demo, by default out/demo; with --text the page, by default out/demo.html."""
    steps: int | None = None
    """Training steps of each model; by default 1,600."""
    text: bool = False
    """Instead show the same key with different competitors in every mechanism, then train a small model on text."""
    seconds: float | None = None
    """With --text: training time of the small model, by default 90; 0 skips training."""
    million: bool = False
    """Instead ask for a needle in texts of up to a million tokens, which exact search finds in a millisecond."""
    models: tuple[str, ...] = ()
    """With --million: models to ask, by default a Multiscreen and a Transformer from checkpoints/."""
    lengths: tuple[int, ...] = ()
    """With --million: tokens of the texts, by default 4,096 to 1,048,576."""
    questions: int | None = None
    """With --million: least number of questions at each length, by default 32."""
    json: bool = False
    """Print records as JSON instead of tables; with --text only the first part, without training."""


def run(args: Args) -> int:
    if args.million:
        if args.text or args.steps is not None or args.seconds is not None or args.out is not None:
            raise ConfigError(
                "--million trains nothing and writes nothing; leave out --text, --steps, --seconds and --out"
            )
        from keysift.cli.demos.million import million_demo

        return million_demo(args.models, args.lengths, args.questions, json=args.json)
    if args.models or args.lengths or args.questions is not None:
        raise ConfigError("--models, --lengths and --questions apply to keysift demo --million only")
    if args.text:
        if args.steps is not None:
            raise ConfigError("--steps does not apply to --text, which trains for --seconds")
        from keysift.cli.demos.text import text_demo

        seconds = 90.0 if args.seconds is None else args.seconds
        text_demo(args.out or Path("out/demo.html"), seconds=seconds, json=args.json)
        return 0
    if args.seconds is not None:
        raise ConfigError("--seconds applies to keysift demo --text only; the other demo trains for --steps")
    from keysift.cli.demos.recall import recall_demo

    return recall_demo(args.out or Path("out/demo"), steps=args.steps, json=args.json, named=args.out is not None)
