"""`keysift bench train`: the loop's overhead over bare steps, and Multiscreen beside a Transformer of its size."""

import os
import tempfile
from pathlib import Path
from typing import Any

from keysift.core.config import config


@config
class Train:
    """What the training loop adds to bare steps, and Multiscreen beside a Transformer of its size."""

    psi: int = 8
    """Size of the Multiscreen."""
    context: int = 512
    """Tokens of a sequence."""
    batch_tokens: int = 2048
    """Tokens of a step."""
    steps: int = 20
    """Steps of each kind."""
    data: str = "stdlib"
    """As in keysift train."""
    json: bool = False
    """Print JSON."""


def measure(args: Train) -> None:
    import torch

    from keysift.cli import output
    from keysift.train.bench import overhead, side_by_side
    from keysift.train.config import TrainConfig

    base = TrainConfig(
        psi=args.psi,
        context=args.context,
        batch_tokens=args.batch_tokens,
        micro_tokens=args.batch_tokens,
        steps=args.steps + 3,
        data=args.data,
        every=1_000_000,
        sample_tokens=0,
        val_sequences=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {
            "overhead": overhead(base, Path(folder) / "run"),
            "side_by_side": side_by_side(base, args.steps + 1),
            "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0],
        }
    if args.json:
        output.print_json(found)
        return
    loop, both = found["overhead"], found["side_by_side"]
    output.print_plain(
        f"loop over bare step: {loop['overhead']:+.1%} "
        f"({loop['loop_seconds_a_step']:.4f} s and {loop['bare_seconds_a_step']:.4f} s, medians of {loop['steps']})"
    )
    for name, speed in both["tokens_per_second"].items():
        output.print_plain(f"{name}, {both['parameters'][name]:,} parameters: {speed:,.0f} tokens/s")
    output.print_plain(f"multiscreen over transformer: {both['multiscreen_over_transformer']:.2f}")
    output.print_plain(f"{found['threads']} threads, load {found['load']:.1f}")
