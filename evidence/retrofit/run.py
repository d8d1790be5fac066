"""Replace softmax in a pretrained model by other mechanisms, fine-tune briefly, and compare with fine-tuned softmax.

    keysift import stories15M --out models/stories15M
    python evidence/retrofit/run.py models/stories15M --work out/retrofit --out evidence/retrofit/record.json
    python evidence/retrofit/run.py --show evidence/retrofit/record.json

The model writes the text itself, at temperature 1. The pretrained model cannot be improved on it, so the loss of a
variant comes from the change of mechanism. Each variant is a run of `keysift train --init MODEL --mechanism ...` below
the working folder. Variants that are in the record are skipped, so an interrupted experiment resumes.
"""

import json
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro

from keysift.core.markdown import table_head, table_row

MECHANISMS = ("softmax", "softmax_sink", "entmax15", "sigmoid", "ssmax", "screening")
STORIES, MAX_TOKENS, BATCH = 240, 255, 40


@dataclass
class Args:
    model: tyro.conf.Positional[Path | None] = None
    """An imported model."""
    work: Path = Path("out/retrofit")
    """Folder of the stories and runs."""
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
    assert args.model is not None, "give an imported model, or --show a record"
    write_stories(args.model, args.work / "stories")
    record = read_or_start(args)
    for name, mechanism in variants(args):
        if name not in record["variants"]:
            record["variants"][name] = run_variant(args, name, mechanism)
            args.out.write_text(json.dumps(record, indent=1) + "\n")


def read_or_start(args: Args) -> dict[str, Any]:
    from keysift.core.config import to_dict
    from keysift.runs import machine

    if args.out.is_file():
        record: dict[str, Any] = json.loads(args.out.read_text())
        return record
    return {
        "command": "python evidence/retrofit/run.py MODEL --work DIR --out FILE",
        "model": args.model.name if args.model else "",
        "machine": to_dict(machine.examine()),
        "stories": STORIES,
        "steps": args.steps,
        "batch_tokens": args.batch_tokens,
        "lr": args.lr,
        "variants": {},
    }


def variants(args: Args) -> list[tuple[str, str | tuple[str, ...]]]:
    """Softmax first, then each mechanism in all layers, then each in every second layer."""
    import keysift

    assert args.model is not None
    depth = keysift.load(args.model).config.depth
    others = [name for name in args.mechanisms if name != "softmax"]
    full: list[tuple[str, str | tuple[str, ...]]] = [("softmax", "softmax")]
    full += [(name, name) for name in others]
    return full + [(f"{name}, half", tuple(("softmax", name)[i % 2] for i in range(depth))) for name in others]


def write_stories(model: Path, folder: Path) -> None:
    """Sample stories from the empty prompt. A story ends where the model begins another one."""
    import keysift
    from keysift.models.generate import Request
    from keysift.models.sampling_settings import Sampling

    if folder.is_dir():
        return
    text = keysift.open(model)
    (begin,) = text.tokenizer.prefix_ids
    stories: list[str] = []
    for first in range(0, STORIES, BATCH):
        seeds = range(first, min(first + BATCH, STORIES))
        requests = [
            Request(prompt="", max_new_tokens=MAX_TOKENS, sampling=Sampling(temperature=1, seed=n)) for n in seeds
        ]
        for row in text.start(requests).run().rows:
            tokens = list(row.tokens)
            stories.append(text.tokenizer.decode(tokens[: tokens.index(begin)] if begin in tokens else tokens))
    folder.mkdir(parents=True)
    for number, story in enumerate(stories):
        (folder / f"{number:04d}.txt").write_text(story)


def run_variant(args: Args, name: str, mechanism: str | tuple[str, ...]) -> dict[str, Any]:
    import torch

    import keysift
    from keysift.evaluate.validation import validate
    from keysift.models.architecture import TransformerArch
    from keysift.models.language_model import LanguageModel, count_parameters
    from keysift.models.registry import build
    from keysift.runs.layout import saved_step
    from keysift.train.distributed import World
    from keysift.train.init import config_from_model, copy_weights, find_origin, model_config
    from keysift.train.loop import train
    from keysift.train.source import open_source

    assert args.model is not None
    base = config_from_model(args.model)
    assert isinstance(base.model, TransformerArch)
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
    fresh = copy_weights(model, origin)

    def loss(model: LanguageModel) -> float:
        held_out = source.validation(config)
        return validate(model.eval(), held_out, config.val_sequences, precision=nullcontext(), processes=world).loss

    before = loss(model)
    began = time.process_time()
    out = args.work / name.replace(", ", "-")
    if saved_step(out) < args.steps:  # otherwise only the measurement is missing
        train(config, out, resume=(out / "train.json").is_file(), show=False)
    if saved_step(out) < args.steps:
        sys.exit(f"{out} was interrupted; run the same command again to resume")
    return {
        "mechanism": mechanism,
        "before": before,
        "after": loss(keysift.load(out)),
        "tokens": args.steps * args.batch_tokens,
        "new_parameters": sum(p.numel() for n, p in model.named_parameters() if n in fresh),
        "parameters": count_parameters(model),
        "seconds": time.process_time() - began,
        "weights": origin.sha256,
    }


def markdown(record: dict[str, Any]) -> str:
    """The record as a table, softmax first. "Recovered" is the share of the cost that fine-tuning removes."""
    variants = record["variants"]
    softmax = variants["softmax"]
    tokens = softmax["tokens"]
    lines = [
        f"{record['model']}, {softmax['parameters']:,} parameters; {tokens:,} tokens of fine-tuning for each row "
        f"({record['steps']} steps of {record['batch_tokens']}, lr {record['lr']:g}); loss in nats per token on "
        f"held-out stories that the model wrote.",
        "",
        *table_head(
            "mechanism", "layers", "loss before", "loss after", "above softmax after", "recovered", "new parameters"
        ),
    ]
    for name, row in variants.items():
        base, _, half = name.partition(", ")
        cost = row["before"] - softmax["before"]
        left = row["after"] - softmax["after"]
        recovered = f"{1 - left / cost:.0%}" if cost > 0.01 else ""
        losses = (f"{row['before']:.3f}", f"{row['after']:.3f}", f"{left:+.3f}")
        lines.append(table_row(base, half or "all", *losses, recovered, str(row["new_parameters"])))
    lines += ["", f"The same fine-tuning changes the loss of softmax by {softmax['after'] - softmax['before']:+.3f}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(tyro.cli(Args))
