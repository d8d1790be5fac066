"""Decoding with finite windows: does memory or time per token grow with the text?

    python -m benchmarks.decode --tokens 100000 --psi 4 --out docs/results/decode.json

Refuses to time a model whose cache does not give the logits of the full forward. One thread; time is the process's own
(CPU time), so that other work on the machine does not count; wall time is reported beside it.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch
from tests.models.checks import cache_matches_forward, opened

from keysift.models.multiscreen import Multiscreen, MultiscreenConfig


def decode(model: Multiscreen, tokens: int) -> dict[str, float]:
    """Greedy decoding from one token; figures for each half, warm-up (all windows filled) left out."""
    cache = model.cache(1)
    token = torch.zeros(1, 1, dtype=torch.int64)
    with torch.inference_mode():
        for _ in range(512):
            token = model(token, cache=cache).argmax(-1)
        halves = []
        for _ in range(2):
            wall, own = time.perf_counter(), time.process_time()
            for _ in range(tokens // 2):
                token = model(token, cache=cache).argmax(-1)
            halves.append((time.perf_counter() - wall, time.process_time() - own, cache.nbytes))
    (wall_1, own_1, bytes_1), (wall_2, own_2, bytes_2) = halves
    return {
        "tokens": tokens,
        "cpu_seconds_first_half": round(own_1, 2),
        "cpu_seconds_second_half": round(own_2, 2),
        "second_over_first": round(own_2 / own_1, 4),
        "wall_second_over_first": round(wall_2 / wall_1, 4),
        "cpu_milliseconds_per_token": round(1000 * (own_1 + own_2) / tokens, 3),
        "cache_bytes_after_first_half": bytes_1,
        "cache_bytes_after_second_half": bytes_2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--psi", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = MultiscreenConfig.psi(args.psi, vocab_size=257)
    model = opened(config).eval()
    cache_matches_forward(model, (300, 7, 1, 1, 1))
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    result = {
        "command": f"python -m benchmarks.decode --tokens {args.tokens} --psi {args.psi}",
        "machine": f"{platform.machine()}, {platform.system()}, torch {torch.__version__}, 1 thread",
        "commit": commit,
        "model": f"Multiscreen psi {args.psi}, vocabulary 257, float32",
        **decode(model, args.tokens),
    }
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
