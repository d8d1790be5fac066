"""Commands to try: each names the material it reads, and where it may write."""

import random
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.material import TINY
from tests.fuzz.mutate import HOSTILE

# No NUL: no system passes one in an argument.
NUMERIC = ["nan", "inf", "-1", "0", "1e-40", "1e308", str(2**64), "9" * 400]
WORDS = [*(word for word in HOSTILE if "\0" not in word), *NUMERIC, "", "--", "-", "$(id)", "softmax", "\udcff"]


@dataclass(frozen=True)
class Case:
    argv: list[str]
    reads: str | None  # the material to mutate; None: the words themselves are the mutation
    writes: list[Path]


def draw(rng: random.Random, material: dict[str, Path], out: Path) -> Case:
    """`material` are the copies this case may spoil."""
    run, text, corpus, bpe = (str(material[name]) for name in ("run", "text", "corpus", "bpe"))
    prompt = ["--prompt", "def ", "--max-new-tokens", "2"]
    recipe, page = str(material["recipe"] / "small.toml"), str(out / "page.html")
    files: list[tuple[list[str], str, list[Path]]] = [
        (["generate", run, *prompt], "run", []),
        (["generate", run, *prompt, "--expand-windows"], "run", []),
        (["runs", str(material["run"].parent)], "run", []),
        (["runs", run, "--json"], "run", []),
        (["train", "--resume", run, "--steps", "3", "--quiet"], "run", [material["run"]]),
        (["train", "--resume", run, "--steps", "3", "--dry-run"], "run", []),
        (["train", "--data", corpus, *TINY, "--steps", "1", "--out", str(out / "new"), "--quiet"], "corpus", [out]),
        (["train", "--data", text, *TINY, "--steps", "1", "--out", str(out / "new"), "--quiet"], "text", [out]),
        (["train", "--config", recipe, "--out", str(out / "new"), "--quiet"], "recipe", [out]),
        (["data", "build", text, "--out", str(out / "built"), "--workers", "1"], "text", [out]),
        (["data", "build", text, "--tokenizer", bpe, "--out", str(out / "built"), "--workers", "1"], "bpe", [out]),
        (["data", "show", corpus], "corpus", []),
        (["data", "show", bpe], "bpe", []),
        (["eval", "loss", run, "--text", f"{text}/story.txt", "--tokens", "40"], "run", []),
        (["eval", "windows", run, "--text", text, "--tokens", "20"], "text", []),
        (["inspect", run, "--text", "all happy families", "--diagnostics-only", "-o", page], "run", [out]),
        (["bench", "show", f"{run}/environment.json"], "run", []),
    ]
    if rng.random() < 0.7:
        return Case(*rng.choice(files))
    word, other = rng.choice(WORDS), rng.choice(WORDS)
    words: list[tuple[list[str], list[Path]]] = [
        (["generate", run, "--prompt", word, "--max-new-tokens", "2", "--temperature", other], []),
        (["generate", run, *prompt, "--stop", word, "--seed", other], []),
        (["generate", run, *prompt, "--top-p", word, "--top-k", other], []),
        (["generate", word, *prompt], []),
        (["weigh", "--scores", word, "--mechanism", other], []),
        (["mechanisms", word], []),
        (["check", word], []),
        (["runs", word], []),
        (["train", "--data", word, *TINY, "--steps", "1", "--out", str(out / "new"), "--quiet"], [out]),
        (["train", "--data", text, *TINY, "--steps", word, "--lr", other, "--out", str(out / "n"), "--dry-run"], [out]),
        (["data", "build", word, "--out", str(out / "built"), "--tokenizer", other], [out]),
        (["eval", "retrieval", run, "--lengths", word, "--instances", other], []),
        (["inspect", word, "--text", other], []),
        (["play", "--no-open", "-o", str(out / "play.html")], [out]),
        ([word, other], []),
    ]
    argv, writes = rng.choice(words)
    return Case(argv, None, writes)
