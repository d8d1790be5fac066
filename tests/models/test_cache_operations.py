"""Random sequences of cache operations: chunks, fills, pauses, beams and crops, compared with forward passes."""

import dataclasses
import random

import pytest
import torch

from keysift.core.errors import UnsupportedError
from keysift.kernels.positions import Positions
from keysift.models.language_model import LanguageModel
from keysift.models.multiscreen import Multiscreen
from keysift.models.transformer import TransformerConfig
from keysift.nn.inference import Inference
from tests.machine import LACKS_KERNEL
from tests.models.checks import TINY, close, perturbed_multiscreen, perturbed_transformer

MIXED = TransformerConfig(vocab_size=9, depth=2, heads=4, width=16, key_heads=2, mechanism=("screening", "softmax"))
SOFTMAX = dataclasses.replace(MIXED, mechanism="softmax")


def random_model(rng: random.Random) -> tuple[LanguageModel, Inference]:
    inference = Inference(expand_windows=rng.choice([False, 4]))
    if rng.random() < 0.3:
        config = MIXED if inference.expand_windows or rng.random() < 0.5 else SOFTMAX
        window = rng.choice([0, 5, (3, 0)])
        config = dataclasses.replace(config, window=window, kept=rng.choice([0, 2]) if window else 0)
        return perturbed_transformer(config, rng.randrange(100)), inference
    tiles = rng.randint(1, 4)
    windows = tuple(rng.choice([2.0, 2.5, 5.0, 5.5, 8.0, 60.0, 70.5]) for _ in range(tiles))
    return perturbed_multiscreen(dataclasses.replace(TINY, tiles=tiles), rng.randrange(100), windows), inference


@pytest.mark.parametrize("equal_lengths", [False, True], ids=["ragged", "equal"])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
@torch.no_grad()
def test_random_operations(seed: int, equal_lengths: bool) -> None:
    """Rows of equal lengths, or rows in which each token may be padding."""
    rng = random.Random(seed)
    model, inference = random_model(rng)
    spare = rng.choice([0, 3])
    cache = model.cache(2, inference=inference, spare=spare, start=rng.choice([0, 1000]))
    rows: list[list[int]] = [[], []]
    compiled = 0
    for _ in range(14):
        operation = rng.random()
        if operation < 0.15 and len(rows) < 5:
            order = [rng.randrange(len(rows)) for _ in range(rng.randint(1, 4))]
            cache.select(torch.tensor(order))
            rows = [list(rows[row]) for row in order]
        elif operation < 0.35 and min(map(len, rows)) > 2:
            counts = [rng.randint(0, 2)] * len(rows) if equal_lengths else [rng.randint(0, 2) for _ in rows]
            try:
                cache.crop(torch.tensor(counts))
            except UnsupportedError:
                pass
            else:
                rows = [row[: len(row) - count] for row, count in zip(rows, counts, strict=True)]
        length = rng.choice([1, 1, 1, 2, 3, 7, 20])
        tokens = torch.tensor([[rng.randrange(9) for _ in range(length)] for _ in rows])
        keep = torch.tensor([[equal_lengths or rng.random() < 0.8 for _ in range(length)] for _ in rows])
        padding = None if keep.all() else keep
        out = None
        if rng.random() < 0.25:
            model.fill(tokens, keep=padding, cache=cache)
        else:
            compiled += model.explain_decode(tokens, keep=padding, cache=cache) == "compiled"
            out = model(tokens, keep=padding, cache=cache)
        for number, row in enumerate(rows):
            row += tokens[number][keep[number]].tolist()
            kept = int(keep[number].sum())
            if kept and out is not None:
                positions = Positions.counted(len(row), start=cache.start)
                full = model(torch.tensor([row]), positions=positions, inference=inference)
                close(out[number][keep[number]], full[0, -kept:])
        assert cache.lengths == [len(row) for row in rows]
    assert sum(map(len, rows)) > 10
    if equal_lengths and not LACKS_KERNEL and isinstance(model, Multiscreen):
        assert compiled, "no token of this walk took the compiled step"
