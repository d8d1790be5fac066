"""Other mechanisms in the weights of a pretrained softmax model: the loss before, after a short fine-tuning, and beside
the same fine-tuning with softmax.

    keysift import stories15M --out models/stories15M
    python recipes/retrofit.py models/stories15M --work out/retrofit --out docs/results/retrofit.json
    python recipes/retrofit.py --show docs/results/retrofit.json

The text is written by the model itself, at temperature 1: on it the pretrained model is as good as a model can be, so
what a variant loses is lost by the change of mechanism, not by a new subject. Each variant is an ordinary run of
`keysift train --init MODEL --mechanism ...` below the working folder; a variant that is in the record already is not
run again, so an interrupted experiment resumes.
"""

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro

MECHANISMS = ("softmax", "softmax_sink", "entmax15", "sigmoid", "ssmax", "screening")
STORIES, LONGEST, AT_ONCE = 240, 255, 40


@dataclass
class Args:
    model: tyro.conf.Positional[Path | None] = None
    """An imported model."""
    work: Path = Path("out/retrofit")
    """Where the stories and the runs are kept."""
    out: Path = Path("out/retrofit.json")
    """The record."""
    show: Path | None = None
    """Print a record as Markdown instead."""
    steps: int = 32
    batch_tokens: int = 1024
    lr: float = 1e-4
    mechanisms: tuple[str, ...] = field(default=MECHANISMS)


def main(args: Args) -> None:
    if args.show is not None:
        sys.stdout.write(markdown(json.loads(args.show.read_text())))
        return
    assert args.model is not None, "name an imported model, or --show a record"
    write_stories(args.model, args.work / "stories")
    record = begun(args)
    for name, mechanism in variants(args):
        if name not in record["variants"]:
            record["variants"][name] = measured(args, name, mechanism)
            args.out.write_text(json.dumps(record, indent=1) + "\n")


def begun(args: Args) -> dict[str, Any]:
    from keysift.core.config import to_dict
    from keysift.runs import machine

    if args.out.is_file():
        found: dict[str, Any] = json.loads(args.out.read_text())
        return found
    return {
        "command": "python recipes/retrofit.py MODEL --work DIR --out FILE",
        "model": args.model.name if args.model else "",
        "machine": to_dict(machine.examine()),
        "stories": STORIES,
        "steps": args.steps,
        "batch_tokens": args.batch_tokens,
        "lr": args.lr,
        "variants": {},
    }


def variants(args: Args) -> list[tuple[str, str | tuple[str, ...]]]:
    """Softmax first, then each mechanism in all layers, then in every second one."""
    import keysift

    assert args.model is not None
    depth = keysift.load(args.model).config.depth
    others = [name for name in args.mechanisms if name != "softmax"]
    found: list[tuple[str, str | tuple[str, ...]]] = [("softmax", "softmax")]
    found += [(name, name) for name in others]
    return found + [(f"{name}, half", tuple(("softmax", name)[i % 2] for i in range(depth))) for name in others]


def write_stories(model: Path, folder: Path) -> None:
    """What the model tells from nothing, each story up to where it begins another."""
    import keysift
    from keysift.models.generate import Request
    from keysift.models.sampling import Sampling

    if folder.is_dir():
        return
    text = keysift.open(model)
    (begin,) = text.tokenizer.begin
    stories: list[str] = []
    for first in range(0, STORIES, AT_ONCE):
        seeds = range(first, min(first + AT_ONCE, STORIES))
        asked = [Request(prompt="", max_new_tokens=LONGEST, sampling=Sampling(temperature=1, seed=n)) for n in seeds]
        for row in text.start(asked).run().rows:
            tokens = list(row.tokens)
            stories.append(text.tokenizer.decode(tokens[: tokens.index(begin)] if begin in tokens else tokens))
    folder.mkdir(parents=True)
    for number, story in enumerate(stories):
        (folder / f"{number:04d}.txt").write_text(story)


def measured(args: Args, name: str, mechanism: str | tuple[str, ...]) -> dict[str, Any]:
    import torch

    import keysift
    from keysift.evaluate.validation import validate
    from keysift.models.kinds import build
    from keysift.models.language import LanguageModel, count
    from keysift.runs.layout import saved
    from keysift.train.distributed import World
    from keysift.train.init import adopt, find_origin, starting_from
    from keysift.train.loop import train
    from keysift.train.setup import model_config
    from keysift.train.source import open_source

    assert args.model is not None
    base = starting_from(args.model)
    config = replace(
        base,
        model=replace(base.model, mechanism=mechanism),
        data=str(args.work / "stories"),
        val_fraction=0.2,
        val_sequences=16,
        batch_tokens=args.batch_tokens,
        steps=args.steps,
        lr=args.lr,
        warmup=args.steps // 8,
        weight_decay=0.0,
        save_every=args.steps,
        sample_tokens=0,
    )
    world = World(0, 1, torch.device("cpu"))
    source = open_source(config, world, show=False)
    origin = find_origin(config, source.tokenizer)
    assert origin is not None
    model = build(model_config(config, origin.vocab_size), torch.Generator().manual_seed(config.seed))
    fresh = adopt(model, origin)

    def loss(one: LanguageModel) -> float:
        held_out = source.validation(config)
        return validate(one.eval(), held_out, config.val_sequences, precision=nullcontext(), processes=world).loss

    before = loss(model)
    began = time.process_time()
    out = args.work / name.replace(", ", "-")
    if saved(out) < args.steps:  # else only the measurement is missing
        train(config, out, resume=(out / "train.json").is_file(), show=False)
    if saved(out) < args.steps:
        sys.exit(f"{out} was interrupted; start again to resume")
    return {
        "mechanism": mechanism,
        "before": before,
        "after": loss(keysift.load(out)),
        "tokens": args.steps * args.batch_tokens,
        "new_parameters": sum(p.numel() for n, p in model.named_parameters() if n in fresh),
        "parameters": count(model),
        "seconds": time.process_time() - began,
        "weights": origin.sha256,
    }


def markdown(record: dict[str, Any]) -> str:
    """A table, softmax first; what is recovered is the part of the loss that the change of mechanism had cost."""
    found = record["variants"]
    softmax = found["softmax"]
    tokens = softmax["tokens"]
    lines = [
        f"{record['model']}, {softmax['parameters']:,} parameters; {tokens:,} tokens of fine-tuning for each row "
        f"({record['steps']} steps of {record['batch_tokens']}, lr {record['lr']:g}); loss in nats a token on held-out "
        f"stories of its own.",
        "",
        "| mechanism | layers | loss before | loss after | above softmax after | recovered | new parameters |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        base, _, half = name.partition(", ")
        cost = row["before"] - softmax["before"]
        left = row["after"] - softmax["after"]
        recovered = f"{1 - left / cost:.0%}" if cost > 0.01 else ""
        lines.append(
            f"| {base} | {half or 'all'} | {row['before']:.3f} | {row['after']:.3f} | {left:+.3f} | {recovered} "
            f"| {row['new_parameters']} |"
        )
    lines += ["", f"The same fine-tuning moved softmax itself by {softmax['after'] - softmax['before']:+.3f}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(tyro.cli(Args))
