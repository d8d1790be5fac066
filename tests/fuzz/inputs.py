"""Valid inputs to mutate: a directory or file of every format that keysift reads."""

import gzip
import pickle
import shutil
from importlib.util import find_spec
from pathlib import Path

from keysift.cli.main import _main
from tests.models.foreign import gguf_file, write

MARKER = "payload-was-run"
TEXT = "def f(x):\n    return x\n\n\nAll happy families are alike.\n" * 30
TINY = ("--psi", "2", "--context", "16", "--batch-tokens", "32", "--sample-tokens", "4", "--val-sequences", "2")


class Payload:
    """Creates a marker file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.marker,)


def make(folder: Path) -> dict[str, Path]:
    """Create the inputs. Returns their directories by name."""
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
    inputs = {"text": text, "run": run, "corpus": corpus, "bpe": bpe, "recipe": recipe}
    inputs |= {"sweep": sweep, "grid": grid, "bench": bench}
    inputs["llama"] = write(folder / "llama")
    if find_spec("gguf") is not None:
        inputs["gguf"] = folder / "gguf"
        inputs["gguf"].mkdir()
        gguf_file(inputs["gguf"] / "model.gguf")
    if find_spec("transformers") is not None:
        from tests.hub.transformers_models import save_model

        inputs["hf"] = save_model(folder / "hf", "gpt2")
    return inputs


def _pack(text: Path) -> None:
    (text / "packed.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    if find_spec("pyarrow") is not None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"text": TEXT.splitlines()}), text / "rows.parquet")


def payloads(marker: Path) -> list[bytes]:
    """File contents that create `marker` when they are unpickled or imported."""
    module = f"from pathlib import Path\nPath({str(marker)!r}).touch()\n".encode()
    return [pickle.dumps(Payload(marker)), pickle.dumps(Payload(marker), protocol=0), module]
