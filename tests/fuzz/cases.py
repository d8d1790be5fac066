"""Commands to try: each names the material it reads, and where it may write."""

import random
from dataclasses import dataclass
from pathlib import Path

from keysift.runs.layout import EVALS
from tests.fuzz.material import TINY
from tests.fuzz.mutate import HOSTILE

# No NUL: no system passes one in an argument.
NUMERIC = ["nan", "inf", "-1", "0", "1e-40", "1e308", str(2**64), "9" * 400]
WORDS = [*(word for word in HOSTILE if "\0" not in word), *NUMERIC, "", "--", "-", "$(id)", "softmax", "\udcff"]
FAMILIES = "all happy families are alike"
PROMPT = ("--prompt", "def ", "--max-new-tokens", "2")
SWEPT = ("--steps", "1", "--quiet")
GRID = ("--task", "passkey", "--lengths", "200", "--depths", "0.5", "--instances", "2")


@dataclass(frozen=True)
class Case:
    argv: list[str]
    reads: str | None  # the material to mutate; None: the words themselves are the mutation
    writes: list[Path]


def draw(rng: random.Random, material: dict[str, Path], out: Path) -> Case:
    """`material` are the copies this case may spoil."""
    if rng.random() < 0.7:
        argv, reads, writes = rng.choice(_on_files(material, out))
        return Case(argv, reads, _with_records(argv, writes))
    argv, writes = rng.choice(_on_words(rng.choice(WORDS), rng.choice(WORDS), material, out))
    return Case(argv, None, _with_records(argv, writes))


def _on_files(material: dict[str, Path], out: Path) -> list[tuple[list[str], str, list[Path]]]:
    """Commands that are right, each with the material it reads, which will be damaged."""
    run, text, corpus, bpe = (str(material[name]) for name in ("run", "text", "corpus", "bpe"))
    prompt = list(PROMPT)
    recipe, page, bench = (
        str(material["recipe"] / "small.toml"),
        str(out / "page.html"),
        str(material["bench"] / "b.json"),
    )
    new, short = ["--steps", "1", "--out", str(out / "new"), "--quiet"], ["--text", FAMILIES, "--diagnostics-only"]
    build, measured = ["--out", str(out / "built"), "--workers", "1"], ["--out", str(out / "measured")]
    files: list[tuple[list[str], str, list[Path]]] = [
        (["generate", run, *prompt], "run", []),
        (["generate", run, *prompt, "--expand-windows"], "run", []),
        (["generate", run, "--prompt-file", f"{text}/story.txt", "--max-new-tokens", "2"], "text", []),
        (["runs", str(material["run"].parent)], "run", []),
        (["runs", run, "--json"], "run", []),
        (["train", "--resume", run, "--steps", "3", "--quiet"], "run", [material["run"]]),
        (["train", "--resume", run, "--steps", "3", "--dry-run"], "run", []),
        (["train", "--data", text, "--arch", "transformer", "--match", run, "--context", "16", "--dry-run"], "run", []),
        (["train", "--data", corpus, *TINY, *new], "corpus", [out]),
        (["train", "--data", text, *TINY, *new], "text", [out]),
        (["train", "--config", recipe, "--out", str(out / "new"), "--quiet"], "recipe", [out]),
        (["train", "--config", recipe, "--dry-run"], "recipe", []),
        (
            ["sweep", "--over", "seed=0,1", "--data", text, *TINY, *SWEPT, "--out", str(material["sweep"])],
            "sweep",
            [material["sweep"]],
        ),
        (
            ["sweep", "--study", str(material["study"] / "small.toml"), "--out", str(out / "study"), "--quiet"],
            "study",
            [out],
        ),
        (["train", "--data", text, "--init", run, "--context", "16", "--batch-tokens", "32", *new], "run", [out]),
        (["report", run, "-o", page], "run", [out]),
        (["report", run, "-o", page, "--measure"], "run", [out, material["run"] / EVALS]),
        (["report", str(material["grid"] / "run"), "-o", page, "--records", str(material["grid"])], "grid", [out]),
        (["report", str(material["sweep"]), "-o", page, "--scaling", str(material["sweep"])], "sweep", [out]),
        (["report", run, "-o", page, "--bench", bench], "bench", [out]),
        (["data", "build", text, *build], "text", [out]),
        (["data", "build", text, *build], "text", [out]),
        (["data", "build", text, "--tokenizer", bpe, *build], "bpe", [out]),
        (["data", "show", corpus], "corpus", []),
        (["data", "show", bpe], "bpe", []),
        (["eval", "loss", run, "--text", f"{text}/story.txt", "--tokens", "40", *measured], "run", [out]),
        (["eval", "positions", run, "--text", text, "--length", "32", "--documents", "2"], "text", []),
        (["eval", "windows", run, "--text", text, "--tokens", "20"], "text", []),
        (["eval", "windows", run, "--text", corpus, "--tokens", "20", "--csv"], "corpus", []),
        (["eval", "relevance", run, "--text", text, "--tokens", "20", *measured], "run", [out]),
        (
            ["eval", "retrieval", str(material["grid"] / "run"), *GRID, "--out", str(material["grid"] / "done")],
            "grid",
            [material["grid"]],
        ),
        (["eval", "stability", str(material["sweep"]), *measured], "sweep", [out]),
        (["eval", "scaling", str(material["sweep"])], "sweep", []),
        (["eval", "latency", bench, *measured], "bench", [out]),
        (["inspect", run, *short, "-o", page], "run", [out]),
        (["inspect", run, "--text", f"{text}/story.txt", "--tokens", "20", "--json"], "text", []),
        (["compare", run, run, "--text", FAMILIES], "run", []),
        (["play", "--no-open", "--model", run, "-o", page], "run", [out]),
        (["bench", "show", bench], "bench", []),
        (["bench", "show", bench, "--markdown"], "bench", []),
        (["bench", "show", bench, "--svg"], "bench", []),
    ]
    return files + _on_others_models(material, out)


def _on_others_models(material: dict[str, Path], out: Path) -> list[tuple[list[str], str, list[Path]]]:
    """The same for models that others made; some can be read only where more is installed."""
    run, text, bpe, llama = (str(material[name]) for name in ("run", "text", "bpe", "llama"))
    page, short, prompt = str(out / "page.html"), ["--text", FAMILIES, "--diagnostics-only"], list(PROMPT)
    new = ["--steps", "1", "--out", str(out / "new"), "--quiet"]
    files: list[tuple[list[str], str, list[Path]]] = [
        (["import", llama, "--out", str(out / "ours")], "llama", [out]),
        (["import", llama, "--out", str(out / "ours"), "--dtype", "bf16", "--tokenizer", bpe], "llama", [out]),
        (["import", llama, "--out", str(out / "ours"), "--tokenizer", bpe], "bpe", [out]),
        (["generate", llama, *prompt], "llama", []),
        (["eval", "loss", llama, "--text", text], "llama", []),
        (["train", "--init", llama, "--data", text, *new], "llama", [out]),
    ]
    if "gguf" in material:
        packed = str(material["gguf"] / "model.gguf")
        files.append((["import", packed, "--out", str(out / "ours"), "--tokenizer", llama], "gguf", [out]))
    if "hf" in material:  # where transformers is installed
        hf = str(material["hf"])
        files += [
            (["export", run, str(out / "exported"), "--hub"], "run", [out]),
            (["import", hf, "--out", str(out / "ours")], "hf", [out]),
            (["inspect", hf, *short, "-o", page], "hf", [out]),
            (["inspect", hf, *short, "--json"], "hf", []),
            (["compare", hf, run, "--text", FAMILIES, "-o", page], "hf", [out]),
            (["play", "--no-open", "--model", hf, "--json"], "hf", []),
        ]
    return files


def _on_words(word: str, other: str, material: dict[str, Path], out: Path) -> list[tuple[list[str], list[Path]]]:
    """Commands with two words of a stranger's in them."""
    run, text, prompt, page = str(material["run"]), str(material["text"]), list(PROMPT), str(out / "page.html")
    return [
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
        (["import", word, "--out", str(out / "ours"), "--tokenizer", other], [out]),
        (["import", str(material["llama"]), "--out", str(out / "ours"), "--dtype", word], [out]),
        (["export", word, str(out / "exported"), "--hub"], [out]),
        (["export", run, str(out / "exported"), word], [out]),
        (["report", word, other, "-o", page], [out]),
        (["report", run, "-o", page, "--title", word, "--records", other], [out]),
        (["report", run, "-o", page, "--sweep", word, "--bench", other], [out]),
        (["eval", "retrieval", run, "--lengths", word, "--instances", other], []),
        (["eval", "retrieval", run, "--task", word, "--depths", other, "--instances", "1"], []),
        (["eval", "positions", run, "--text", text, "--length", word, "--documents", other], []),
        (["eval", "positions", run, "--text", text, "--length", "32", "--rope-factors", word, other], []),
        (["eval", "windows", run, "--text", text, "--tokens", word], []),
        (["eval", "relevance", run, "--text", word, "--tokens", "20"], []),
        (["eval", "loss", run, "--text", text, "--tokens", "64", "--context", word, "--stride", other], []),
        (["eval", "lm", run, "--tasks", word, "--limit", other], []),
        (["eval", "latency", word, other], []),
        (["eval", "stability", word, other], []),
        (["eval", "loss", word, "--text", other], []),
        (["eval", "scaling", word, "--out", str(out / "measured")], [out]),
        (["sweep", "--over", word, "--each", other, "--steps", "1", "--out", str(out / "sweep")], [out]),
        (["sweep", "--study", word, "--records", other, "--out", str(out / "sweep")], [out]),
        (
            ["sweep", "--over", "seed=0", "--processes", word, "--data", text, *TINY, *SWEPT, "--out", str(out / "s")],
            [out],
        ),
        (["compare", word, other, "--text", word], []),
        (["bench", word, "--out", str(out / "b.json")], [out]),
        (["doctor", "--threads", word], []),
        (["presets", word], []),
        (["demo", "--text", "--seconds", word, "--json", "--out", str(out / "demo.html")], [out]),
        (["demo", "--text", "--seconds", "0", "--out", str(out / "demo.html")], [out]),
        (["demo", "--steps", word, "--seconds", other], []),
        (["demo", "--text", "--steps", word], []),
        (["play", "--no-open", "--model", word, "-o", str(out / "play.html")], [out]),
        (["inspect", word, "--text", other], []),
        (["play", "--no-open", "-o", str(out / "play.html")], [out]),
        ([word, other], []),
    ]


def _with_records(argv: list[str], writes: list[Path]) -> list[Path]:
    """`keysift eval` keeps its record in the run it measured, unless told otherwise."""
    return [*writes, Path(argv[2]) / EVALS] if argv[0] == "eval" and len(argv) > 2 else writes
