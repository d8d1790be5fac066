"""How fast text becomes a corpus on disk, reading and hashing included: python -m benchmarks.tokenise [--file PATH]

The text is the standard library, repeated to `--mb` megabytes in one file, unless a file is given. Each tokenizer is
timed `--repeat` times; the figure is the median. What was written is decoded and compared before a figure is printed.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keysift.data import Corpus, bpe, build, find_source
from keysift.data.tokenizer import Bytes, Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--bpe-mb", type=float, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        results = [_time(Bytes(), args.file or _text(root / "long.txt", args.mb), root, args.repeat, workers=1)]
        short = _text(root / "short.txt", args.bpe_mb)
        tokenizer = bpe.train([document.text for document in find_source(str(short)).documents()], vocab_size=4096)
        for workers in (1, os.cpu_count() or 1):
            results.append(_time(tokenizer, short, root, args.repeat, workers=workers))
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    told = {
        "command": " ".join(["python -m benchmarks.tokenise", *sys.argv[1:]]),
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "results": results,
    }
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


def _text(path: Path, mb: float) -> Path:
    size = 0
    with path.open("w") as file:
        while size < mb * 1e6:
            for document in find_source("stdlib").documents():
                size += len(document.text.encode())
                file.write(document.text)
                if size >= mb * 1e6:
                    break
    return path


def _time(tokenizer: Tokenizer, path: Path, root: Path, repeat: int, *, workers: int) -> dict[str, object]:
    seconds = []
    for turn in range(repeat):
        out = root / f"{tokenizer.hash[:8]}-{workers}-{turn}"
        began = time.perf_counter()
        corpus = build(str(path), tokenizer, out, workers=workers, show=False)
        seconds.append(time.perf_counter() - began)
    _check(corpus, path)
    megabytes = corpus.index.text_bytes / 1e6
    return {
        "tokenizer": tokenizer.name,
        "workers": workers,
        "megabytes": round(megabytes, 1),
        "tokens": corpus.index.tokens,
        "seconds": [round(second, 3) for second in seconds],
        "mb_per_s": round(megabytes / statistics.median(seconds), 1),
    }


def _check(corpus: Corpus, path: Path) -> None:
    head = corpus.tokenizer.decode(corpus.read(0, min(corpus.index.tokens, 100_000)).tolist())
    source = next(iter(find_source(str(path)).documents())).text
    shared = min(len(head), len(source)) - 8  # the last character may be cut in two
    if head[:shared] != source[:shared]:
        raise SystemExit(f"{corpus.index.tokenizer} does not give the text back; nothing was timed")


if __name__ == "__main__":
    main()
