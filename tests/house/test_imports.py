"""Modules that keysift must not load before it needs them. Start-up time is what they cost, so imports are checked."""

import subprocess
import sys
from pathlib import Path

from keysift.cli.main import VERBS

ROOT = Path(__file__).parents[2]
MODELS = [str(ROOT / "checkpoints" / name) for name in ("one-hop-multiscreen", "one-hop-transformer")]
COMPILERS = ("torch._dynamo", "sympy", "transformers", "matplotlib", "datasets")
REFUSED = [
    ["mechanisms", "--nope"],
    ["weigh", "--scores", "x"],
    ["check", "--nope"],
    ["doctor", "--nope"],
    ["demo", "--text", "--steps", "3"],
    ["demo", "--seconds", "3"],
    ["play", "--model", "./nofile"],
    ["presets", "--nope"],
    ["generate", "nofile", "--prompt", "x"],
    ["generate", MODELS[0], "--prompt-file", "nofile"],
    ["generate", MODELS[0], "--prompt", "x", "--temperature", "-1"],
    ["data", "show", "nofile"],
    ["import", "nofile", "--out", "out"],
    ["import", "nofile.gguf", "--out", "out"],
    ["export", "nofile", "out", "--hub"],
    ["train", "--out", "out", "--steps", "1", "--data", "nofile.txt"],
    ["train", "--out", "out"],
    ["train", "--resume", "nofile"],
    ["train", "--init", "nofile", "--out", "out"],
    ["train", "--preset", "nosuch", "--out", "out"],
    ["runs", "--nope"],
    ["sweep", "--out", "out", "--over", "nope=1", "--steps", "1"],
    ["bench", "show", "nofile"],
    ["eval", "loss", "nofile"],
    ["eval", "stability", "nofile"],
    ["report", "nofile"],
    ["inspect", "./nofile", "--text", "a"],
    ["inspect", MODELS[0], "--text", "nofile.txt"],
    ["compare", MODELS[0], "./nofile", "--text", "a"],
]
CODE = """
import sys
from keysift.cli.main import _main

commands, banned = eval(sys.argv[1]), eval(sys.argv[2])
for command, expected in commands:
    try:
        code = _main(command)
    except SystemExit as exit_:
        code = exit_.code
    loaded = [name for name in banned if name in sys.modules]
    if code != expected or loaded:
        sys.exit(f"keysift {' '.join(command)}: exit code {code}, loaded {loaded}")
"""


def run_all(commands: list[tuple[list[str], int]], banned: tuple[str, ...], folder: Path) -> None:
    """Run commands one after another in a new process. Fails if one has another exit code or loads a banned module."""
    process = subprocess.run(
        [sys.executable, "-c", CODE, repr(commands), repr(banned)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert process.returncode == 0, process.stderr


def test_wrong_arguments_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    assert {command[0] for command in REFUSED} == set(VERBS)
    run_all([(command, 2) for command in REFUSED], ("torch", *COMPILERS), tmp_path)


def test_help_imports_no_torch(tmp_path: Path) -> None:
    run_all([(["generate", "--help"], 0), (["train", "--help"], 0)], ("torch", "numpy", *COMPILERS), tmp_path)


def test_using_a_model_loads_no_compiler(tmp_path: Path) -> None:
    """torch._dynamo alone would double the time to the first token."""
    generate = [["generate", model, "--prompt", "A=0 B=1 A?", "--max-new-tokens", "2"] for model in MODELS]
    inspect = ["inspect", MODELS[0], "--text", "A=0 B=1 A?", "--diagnostics-only"]
    run_all([(command, 0) for command in [*generate, ["presets"], inspect]], COMPILERS, tmp_path)
