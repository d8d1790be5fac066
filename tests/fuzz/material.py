"""What mutations start from: one of every directory and file that keysift reads, made by keysift itself."""

import gzip
import pickle
import shutil
from importlib.util import find_spec
from pathlib import Path

from keysift.cli.main import _main
from tests.runs.foreign import gguf_file, write

MARKER = "payload-was-run"
TEXT = "def f(x):\n    return x\n\n\nAll happy families are alike.\n" * 30
TINY = ("--psi", "2", "--context", "16", "--batch-tokens", "32", "--sample-tokens", "4", "--val-sequences", "2")

STUDY = """data = "{data}"
steps = 1
context = 16
batch_tokens = 32
val_sequences = 2
sample_tokens = 0

[study]
seeds = [0]

[[study.grid]]
each = ["psi=2"]
over = ["lr=0.01"]
"""


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
    sweep, grid, bench = folder / "sweep", folder / "grid", folder / "bench"
    flags = ["--over", "seed=0,1", "--data", str(text / "story.txt"), *TINY, "--steps", "1", "--quiet"]
    assert _main(["sweep", "--out", str(sweep), *flags]) == 0
    shutil.copytree(run, grid / "run", symlinks=True)
    from tests.fuzz.cases import GRID

    assert _main(["eval", "retrieval", str(grid / "run"), *GRID, "--out", str(grid / "done")]) == 0
    bench.mkdir()
    shutil.copy(Path(__file__).parents[2] / "docs" / "results" / "models.json", bench / "b.json")
    _pack(text)
    recipe = folder / "recipe"
    recipe.mkdir()
    (recipe / "small.toml").write_text("psi = 2\nsteps = 1\ncontext = 16\nbatch_tokens = 32\n")
    study = folder / "study"
    study.mkdir()
    (study / "small.toml").write_text(STUDY.format(data=text / "story.txt"))
    made = {"text": text, "run": run, "corpus": corpus, "bpe": bpe, "recipe": recipe}
    made |= {"sweep": sweep, "grid": grid, "bench": bench, "study": study}
    made["llama"] = write(folder / "llama")
    if find_spec("gguf") is not None:
        made["gguf"] = folder / "gguf"
        made["gguf"].mkdir()
        gguf_file(made["gguf"] / "model.gguf")
    if find_spec("transformers") is not None:
        from tests.hub.models import saved

        made["hf"] = saved(folder / "hf", "gpt2")
    return made


def _pack(text: Path) -> None:
    (text / "packed.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    if find_spec("pyarrow") is not None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": TEXT.splitlines()}), text / "rows.parquet")


def payloads(marker: Path) -> list[bytes]:
    """Files that run something if they are unpickled or imported."""
    said = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n".encode()
    return [pickle.dumps(Payload(marker)), pickle.dumps(Payload(marker), protocol=0), said]
