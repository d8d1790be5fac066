"""What mutations start from: one of every directory and file that keysift reads, made by keysift itself."""

import pickle
from pathlib import Path

from keysift.cli.main import _main

MARKER = "payload-was-run"
TEXT = "def f(x):\n    return x\n\n\nAll happy families are alike.\n" * 30
TINY = ("--psi", "2", "--context", "16", "--batch-tokens", "32", "--sample-tokens", "4", "--val-sequences", "2")


class Payload:
    """Leaves a mark where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.marker,)


def make(folder: Path) -> dict[str, Path]:
    """Directories by the name commands use for them."""
    folder.mkdir(parents=True)
    text = folder / "text"
    text.mkdir()
    (text / "story.txt").write_text(TEXT)
    (text / "lines.jsonl").write_text('{"text": "one line"}\n{"text": "another line of text"}\n' * 20)
    run, corpus, bpe = folder / "run", folder / "corpus", folder / "bpe"
    for command in (
        ["train", "--data", str(text / "story.txt"), *TINY, "--steps", "2", "--out", str(run), "--quiet"],
        ["data", "build", str(text / "story.txt"), "--out", str(corpus)],
        ["data", "build", str(text / "story.txt"), "--tokenizer", "bpe:300", "--out", str(bpe), "--workers", "1"],
    ):
        assert _main(command) == 0, command
    recipe = folder / "recipe"
    recipe.mkdir()
    (recipe / "small.toml").write_text("psi = 2\nsteps = 1\ncontext = 16\nbatch_tokens = 32\n")
    return {"text": text, "run": run, "corpus": corpus, "bpe": bpe, "recipe": recipe}


def payloads(marker: Path) -> list[bytes]:
    """Files that run something if they are unpickled or imported."""
    said = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n".encode()
    return [pickle.dumps(Payload(marker)), pickle.dumps(Payload(marker), protocol=0), said]
