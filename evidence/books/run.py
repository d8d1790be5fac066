"""Train the text models of checkpoints/ on public-domain books, and measure them on two books they were not trained on.

    python -m evidence.books.run FOLDER --work out/books

FOLDER holds the files of books.toml. Every step whose result exists is skipped, and an interrupted run of training is
resumed, so the same command finishes what was begun. Removing a model's records measures it again.

For each model this writes checkpoints/NAME (fp16) and, here, a line of runs.jsonl (settings and curves),
NAME-loss.json, NAME-positions.json and NAME.txt (a sample). `python -m evidence pages` writes the page.
"""

import gzip
import hashlib
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

HERE = Path(__file__).parent
CHECKPOINTS = HERE.parents[1] / "checkpoints"
STEPS = 2560
DATA = ["--context", "1024", "--batch-tokens", "8192", "--steps", str(STEPS), "--seed", "0"]
SCHEDULE = ["--schedule", "wsd", "--decay-share", "0.3", "--warmup", "64", "--save-every", "80", "--threads", "1"]
MODELS = {
    "books-multiscreen": ["--psi", "8", "--lr", "0.0625"],
    "books-transformer": [
        "--arch",
        "transformer",
        "--depth",
        "4",
        "--heads",
        "4",
        "--width",
        "136",
        "--lr",
        "0.00390625",
    ],
}
BEYOND = {
    "books-multiscreen": ["--expand-windows"],
    "books-transformer": ["--rope-scalings", "linear:factor=16", "yarn:factor=16"],
}
PIECE = 100_000  # bytes of a held-out document; loss by position needs many documents of 16 times the training length
LENGTH = 18_432  # 16 times the training length, and the positions over which the last point averages
DOCUMENTS = 8
PROMPT, SAMPLE_TOKENS = "It was", 600


@dataclass
class Args:
    books: tyro.conf.Positional[Path]
    """Folder with the files of books.toml."""
    work: Path = Path("out/books")
    """Folder of the runs and the unpacked books."""
    models: tuple[str, ...] = tuple(MODELS)
    """Models to train and measure."""


def main(args: Args) -> None:
    work = args.work.resolve()  # commands run in the root of the repository
    prepare(args.books, work / "books")
    for name in args.models:
        ship(name, work)
        measure(name, work)


def prepare(books: Path, folder: Path) -> None:
    """Copy the training books, and cut the held-out books into documents. Stops at a book with another hash."""
    for part, files in tomllib.loads((HERE / "books.toml").read_text()).items():
        target = folder / part
        target.mkdir(parents=True, exist_ok=True)
        for file, book in files.items():
            text = gzip.decompress((books / file).read_bytes())
            found = hashlib.sha256(text).hexdigest()
            if found != book["sha256"]:
                sys.exit(f"{books / file} has the hash {found}; {book['title']} in books.toml has {book['sha256']}")
            if part == "train":
                shutil.copy(books / file, target / file)
            else:
                stem = file.removesuffix(".txt.gz")
                for number, start in enumerate(range(0, len(text) - PIECE + 1, PIECE)):
                    piece = text[start : start + PIECE].decode(errors="ignore")  # a cut may fall inside a character
                    (target / f"{stem}-{number:02}.txt").write_text(piece)


def train(name: str, work: Path) -> Path:
    from keysift.runs.layout import saved_step

    run = work / "runs" / name
    if run.is_dir():
        if saved_step(run) < STEPS:
            keysift("train", "--resume", str(run), "--threads", "1")
    else:
        keysift("train", *MODELS[name], *DATA, *SCHEDULE, "--data", str(work / "books" / "train"), "--out", str(run))
    return run


def ship(name: str, work: Path) -> None:
    """Train a model that has no record; write checkpoints/NAME in fp16 with its recipe, and the record."""
    import torch

    from evidence.records import make_record, read_records, write_records
    from keysift.models import save
    from keysift.models.text_model import open as open_model
    from keysift.runs.directory import Run
    from keysift.train.manifest import read_manifest
    from keysift.train.settings import to_toml

    records = read_records(HERE / "runs.jsonl")
    if name in records:
        return
    run = train(name, work)
    shipped = CHECKPOINTS / name
    save.save(open_model(run).model.to(torch.float16), shipped)
    shutil.copy(run / "keysift_tokenizer.json", shipped)
    (shipped / "recipe.toml").write_text(without_path(to_toml(read_manifest(Run(run)).config), work))
    record = make_record(name, run, {}, {})
    records[name] = replace(record, settings={**record.settings, "data": "books/train"})
    write_records(HERE / "runs.jsonl", records.values())


def measure(name: str, work: Path) -> None:
    """Bits per byte and loss by position on the held-out books, and a sample, of the shipped model."""
    shipped, held_out = f"checkpoints/{name}", str(work / "books" / "held_out")
    steps = {
        f"{name}-loss.json": ["eval", "loss", shipped, "--text", held_out, "--tokens", "100000", "--json"],
        f"{name}-positions.json": [
            *("eval", "positions", shipped, "--text", held_out, "--length", str(LENGTH)),
            *("--documents", str(DOCUMENTS), *BEYOND[name], "--json"),
        ],
        f"{name}.txt": ["generate", shipped, "--prompt", PROMPT, "--max-new-tokens", str(SAMPLE_TOKENS), "--seed", "0"],
    }
    for file, command in steps.items():
        if not (HERE / file).is_file():
            output = without_path(keysift(*command, capture=True), work)
            (HERE / file).write_text(output)


def without_path(text: str, work: Path) -> str:
    """The text without the working folder of this machine."""
    return text.replace(f"{work}/", "")


def keysift(*arguments: str, capture: bool = False) -> str:
    """Run the command line from the root of the repository."""
    command = [sys.executable, "-m", "keysift", *arguments]
    done = subprocess.run(
        command, check=True, text=True, cwd=CHECKPOINTS.parent, stdout=subprocess.PIPE if capture else None
    )
    return done.stdout or ""


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
