"""Commands to run: each names the input it reads and the paths it may write."""

import random
from dataclasses import dataclass
from pathlib import Path

from keysift.runs.layout import EVALS
from tests.fuzz.inputs import TINY
from tests.fuzz.mutate import HOSTILE

# An argument cannot contain a NUL byte.
NUMERIC = ["nan", "inf", "-1", "0", "1e-40", "1e308", str(2**64), "9" * 400]
WORDS = [*(word for word in HOSTILE if "\0" not in word), *NUMERIC, "", "--", "-", "$(id)", "softmax", "\udcff"]
FAMILIES = "all happy families are alike"
PROMPT = ("--prompt", "def ", "--max-new-tokens", "2")
SWEPT = ("--steps", "1", "--quiet")
GRID = ("--task", "passkey", "--lengths", "200", "--depths", "0.5", "--instances", "2")


@dataclass(frozen=True)
class Case:
    """A command line, the input it reads and the paths it may write."""

    argv: list[str]
    reads: str | None  # the input to mutate; None if the arguments are hostile instead
    writes: list[Path]


def draw(rng: random.Random, inputs: dict[str, Path], out: Path) -> Case:
    """Draw a random case. `inputs` are copies that it may change."""
    if rng.random() < 0.7:
        argv, reads, writes = rng.choice(_commands_on_files(inputs, out))
        return Case(argv, reads, _with_eval_folder(argv, writes))
    argv, writes = rng.choice(_commands_on_words(rng.choice(WORDS), rng.choice(WORDS), inputs, out))
    return Case(argv, None, _with_eval_folder(argv, writes))


def corpus(inputs: dict[str, Path], out: Path) -> list[tuple[Case, str]]:
    """Cases that were faults once, each with the file of its input to replace by a pipe. Every run starts with them."""
    recipe, run, new = str(inputs["recipe"] / "small.toml"), str(inputs["run"]), str(out / "new")
    return [
        (Case(["train", "--config", recipe, "--dry-run"], "recipe", []), "small.toml"),  # seed 4242, case 40
        (Case(["train", "--config", recipe, "--out", new, "--quiet"], "recipe", [out]), "small.toml"),
        (Case(["generate", run, *PROMPT], "run", []), "config.json"),
        (Case(["inspect", run, "--text", FAMILIES, "--diagnostics-only"], "run", []), "config.json"),
        (Case(["eval", "loss", str(inputs["llama"]), "--text", FAMILIES], "llama", []), "config.json"),
        (Case(["runs", run], "run", []), "train.json"),
    ]


def _commands_on_files(inputs: dict[str, Path], out: Path) -> list[tuple[list[str], str, list[Path]]]:
    """Valid commands, each with the input to damage and the paths it may write."""
    run, text, corpus, bpe = (str(inputs[name]) for name in ("run", "text", "corpus", "bpe"))
    prompt = list(PROMPT)
    recipe, page, bench = (
        str(inputs["recipe"] / "small.toml"),
        str(out / "page.html"),
        str(inputs["bench"] / "b.json"),
    )
    new, short = ["--steps", "1", "--out", str(out / "new"), "--quiet"], ["--text", FAMILIES, "--diagnostics-only"]
    build, measured = ["--out", str(out / "built"), "--workers", "1"], ["--out", str(out / "measured")]
    files: list[tuple[list[str], str, list[Path]]] = [
        (["generate", run, *prompt], "run", []),
        (["generate", run, *prompt, "--expand-windows"], "run", []),
        (["generate", run, "--prompt-file", f"{text}/story.txt", "--max-new-tokens", "2"], "text", []),
        (["runs", str(inputs["run"].parent)], "run", []),
        (["runs", run, "--json"], "run", []),
        (["train", "--resume", run, "--steps", "3", "--quiet"], "run", [inputs["run"]]),
        (["train", "--resume", run, "--steps", "3", "--dry-run"], "run", []),
        (["train", "--data", text, "--arch", "transformer", "--match", run, "--context", "16", "--dry-run"], "run", []),
        (["train", "--data", corpus, *TINY, *new], "corpus", [out]),
        (["train", "--data", text, *TINY, *new], "text", [out]),
        (["train", "--config", recipe, "--out", str(out / "new"), "--quiet"], "recipe", [out]),
        (["train", "--config", recipe, "--dry-run"], "recipe", []),
        (
            ["sweep", "--over", "seed=0,1", "--data", text, *TINY, *SWEPT, "--out", str(inputs["sweep"])],
            "sweep",
            [inputs["sweep"]],
        ),
        (["train", "--data", text, "--init", run, "--context", "16", "--batch-tokens", "32", *new], "run", [out]),
        (["report", run, "-o", page], "run", [out]),
        (["report", run, "-o", page, "--measure"], "run", [out, inputs["run"] / EVALS]),
        (["report", str(inputs["grid"] / "run"), "-o", page, "--records", str(inputs["grid"])], "grid", [out]),
        (["report", str(inputs["sweep"]), "-o", page, "--scaling", str(inputs["sweep"])], "sweep", [out]),
        (["report", run, "-o", page, "--bench", bench], "bench", [out]),
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
            ["eval", "retrieval", str(inputs["grid"] / "run"), *GRID, "--out", str(inputs["grid"] / "done")],
            "grid",
            [inputs["grid"]],
        ),
        (["eval", "stability", str(inputs["sweep"]), *measured], "sweep", [out]),
        (["eval", "scaling", str(inputs["sweep"])], "sweep", []),
        (["inspect", run, *short, "-o", page], "run", [out]),
        (["inspect", run, "--text", f"{text}/story.txt", "--tokens", "20", "--json"], "text", []),
        (["compare", run, run, "--text", FAMILIES], "run", []),
        (["play", "--no-open", "--model", run, "-o", page], "run", [out]),
        (["bench", "show", bench], "bench", []),
        (["bench", "show", bench, "--markdown"], "bench", []),
        (["bench", "show", bench, "--svg"], "bench", []),
    ]
    return files + _commands_on_foreign_models(inputs, out)


def _commands_on_foreign_models(inputs: dict[str, Path], out: Path) -> list[tuple[list[str], str, list[Path]]]:
    """Valid commands that read models of other libraries; some need an optional dependency."""
    run, text, bpe, llama = (str(inputs[name]) for name in ("run", "text", "bpe", "llama"))
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
    if "gguf" in inputs:
        packed = str(inputs["gguf"] / "model.gguf")
        files.append((["import", packed, "--out", str(out / "ours"), "--tokenizer", llama], "gguf", [out]))
    if "hf" in inputs:  # where transformers is installed
        hf = str(inputs["hf"])
        files += [
            (["export", run, str(out / "exported"), "--hub"], "run", [out]),
            (["import", hf, "--out", str(out / "ours")], "hf", [out]),
            (["inspect", hf, *short, "-o", page], "hf", [out]),
            (["inspect", hf, *short, "--json"], "hf", []),
            (["compare", hf, run, "--text", FAMILIES, "-o", page], "hf", [out]),
            (["play", "--no-open", "--model", hf, "--json"], "hf", []),
        ]
    return files


def _commands_on_words(
    argument: str, second: str, inputs: dict[str, Path], out: Path
) -> list[tuple[list[str], list[Path]]]:
    """Commands with two hostile arguments, and the paths they may write."""
    run, text, prompt, page = str(inputs["run"]), str(inputs["text"]), list(PROMPT), str(out / "page.html")
    return [
        (["generate", run, "--prompt", argument, "--max-new-tokens", "2", "--temperature", second], []),
        (["generate", run, *prompt, "--stop", argument, "--seed", second], []),
        (["generate", run, *prompt, "--top-p", argument, "--top-k", second], []),
        (["generate", argument, *prompt], []),
        (["weigh", "--scores", argument, "--mechanism", second], []),
        (["mechanisms", argument], []),
        (["check", argument], []),
        (["runs", argument], []),
        (["train", "--data", argument, *TINY, "--steps", "1", "--out", str(out / "new"), "--quiet"], [out]),
        (
            ["train", "--data", text, *TINY, "--steps", argument, "--lr", second, "--out", str(out / "n"), "--dry-run"],
            [out],
        ),
        (["data", "build", argument, "--out", str(out / "built"), "--tokenizer", second], [out]),
        (["import", argument, "--out", str(out / "ours"), "--tokenizer", second], [out]),
        (["import", str(inputs["llama"]), "--out", str(out / "ours"), "--dtype", argument], [out]),
        (["export", argument, str(out / "exported"), "--hub"], [out]),
        (["export", run, str(out / "exported"), argument], [out]),
        (["report", argument, second, "-o", page], [out]),
        (["report", run, "-o", page, "--title", argument, "--records", second], [out]),
        (["report", run, "-o", page, "--sweep", argument, "--bench", second], [out]),
        (["eval", "retrieval", run, "--lengths", argument, "--instances", second], []),
        (["eval", "retrieval", run, "--task", argument, "--depths", second, "--instances", "1"], []),
        (["eval", "positions", run, "--text", text, "--length", argument, "--documents", second], []),
        (["eval", "positions", run, "--text", text, "--length", "32", "--rope-factors", argument, second], []),
        (["eval", "windows", run, "--text", text, "--tokens", argument], []),
        (["eval", "relevance", run, "--text", argument, "--tokens", "20"], []),
        (["eval", "loss", run, "--text", text, "--tokens", "64", "--context", argument, "--stride", second], []),
        (["eval", "lm", run, "--tasks", argument, "--limit", second], []),
        (["bench", "show", argument], []),
        (["eval", "stability", argument, second], []),
        (["eval", "loss", argument, "--text", second], []),
        (["eval", "scaling", argument, "--out", str(out / "measured")], [out]),
        (["sweep", "--over", argument, "--each", second, "--steps", "1", "--out", str(out / "sweep")], [out]),
        (
            [
                "sweep",
                "--over",
                "seed=0",
                "--processes",
                argument,
                "--data",
                text,
                *TINY,
                *SWEPT,
                "--out",
                str(out / "s"),
            ],
            [out],
        ),
        (["compare", argument, second, "--text", argument], []),
        (["bench", argument, "--out", str(out / "b.json")], [out]),
        (["doctor", "--threads", argument], []),
        (["presets", argument], []),
        (["demo", "--text", "--seconds", argument, "--json", "--out", str(out / "demo.html")], [out]),
        (["demo", "--text", "--seconds", "0", "--out", str(out / "demo.html")], [out]),
        (["demo", "--steps", argument, "--seconds", second], []),
        (["demo", "--text", "--steps", argument], []),
        (["play", "--no-open", "--model", argument, "-o", str(out / "play.html")], [out]),
        (["inspect", argument, "--text", second], []),
        (["play", "--no-open", "-o", str(out / "play.html")], [out]),
        ([argument, second], []),
    ]


def _with_eval_folder(argv: list[str], writes: list[Path]) -> list[Path]:
    """Add the folder of the run in which `keysift eval` stores its record by default."""
    return [*writes, Path(argv[2]) / EVALS] if argv[0] == "eval" and len(argv) > 2 else writes
