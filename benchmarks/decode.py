"""Decoding with finite windows: does memory or time per token grow with the text?

    python -m benchmarks.decode --tokens 100000 --psi 4 --out docs/results/decode.json

Refuses to time a model whose cache does not give the logits of the full forward. One thread, and the process's own CPU
time. Other work on the machine still slows every step, so a control runs beside it: every tenth step, one step of the
same model on a text that never passes 1,512 tokens. What a step costs beyond the control's is what length costs.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tests.models.checks import cache_matches_forward, opened

from keysift.models.multiscreen import Multiscreen, MultiscreenConfig

WARM = 512


class Decoder:
    """Greedy decoding, one token at a time, from a cache whose windows are all full."""

    def __init__(self, model: Multiscreen) -> None:
        self.model = model
        self.reset()

    def reset(self) -> None:
        self.cache = self.model.cache(1)
        self.token = torch.zeros(1, 1, dtype=torch.int64)
        for _ in range(WARM):
            self.token = self.model(self.token, cache=self.cache).argmax(-1)

    def step(self) -> float:
        began = time.process_time()
        self.token = self.model(self.token, cache=self.cache).argmax(-1)
        return time.process_time() - began


def decode(model: Multiscreen, tokens: int) -> dict[str, float]:
    """Figures for each half of a long text, beside a control: the same step on a text that stays short."""
    long, short = Decoder(model), Decoder(model)
    halves = []
    for _ in range(2):
        wall = time.perf_counter()
        steps, control = [], []
        for token in range(tokens // 2):
            steps.append(long.step())
            if token % 10 == 0:
                control.append(short.step())
            if token % 10_000 == 9_999:
                short.reset()
        halves.append((steps, control, time.perf_counter() - wall, long.cache.nbytes))
    (steps_1, control_1, wall_1, bytes_1), (steps_2, control_2, wall_2, bytes_2) = halves
    whole, beside = sum(steps_2) / sum(steps_1), sum(control_2) / sum(control_1)
    return {
        "tokens": tokens,
        "cpu_seconds_first_half": round(sum(steps_1), 2),
        "cpu_seconds_second_half": round(sum(steps_2), 2),
        "second_over_first": round(whole, 4),
        "median_step_second_over_first": round(median(steps_2) / median(steps_1), 4),
        "control_second_over_first": round(beside, 4),
        "second_over_first_against_control": round(whole / beside, 4),
        "wall_second_over_first": round(wall_2 / wall_1, 4),
        "cpu_milliseconds_per_token": round(1000 * (sum(steps_1) + sum(steps_2)) / tokens, 3),
        "cache_bytes_after_first_half": bytes_1,
        "cache_bytes_after_second_half": bytes_2,
    }


def sentence(result: dict[str, Any]) -> str:
    each = result["cpu_milliseconds_per_token"]
    whole, control = result["second_over_first"], result["control_second_over_first"]
    halfway, end = result["cache_bytes_after_first_half"], result["cache_bytes_after_second_half"]
    return (
        f"Measured (docs/results/decode.json): {result['tokens']:,} tokens decoded one at a time by a\n"
        f"{result['model']}, {each:.1f} ms of CPU time each. The second half took {whole:.2f} times as long\n"
        f"as the first; a control that stayed on a short text, beside it on the same machine, {control:.2f} times.\n"
        f"The cache held {halfway:,} bytes halfway and {end:,} at the end.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--psi", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quote", type=Path, help="say in one sentence what a result file holds")
    args = parser.parse_args()
    if args.quote:
        sys.stdout.write(sentence(json.loads(args.quote.read_text())))
        return
    torch.set_num_threads(1)
    config = MultiscreenConfig.psi(args.psi, vocab_size=257)
    model = opened(config).eval()
    cache_matches_forward(model, (300, 7, 1, 1, 1))
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True).strip()
    with torch.inference_mode():
        timed = decode(model, args.tokens)
    result = {
        "command": f"python -m benchmarks.decode --tokens {args.tokens} --psi {args.psi}",
        "machine": f"{platform.machine()}, {platform.system()}, torch {torch.__version__}, 1 thread",
        "commit": commit,
        "model": f"Multiscreen psi {args.psi}, vocabulary 257, float32",
        **timed,
    }
    text = json.dumps(result, indent=2) + "\n"
    sys.stdout.write(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
