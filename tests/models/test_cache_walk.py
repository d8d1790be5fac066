"""Random walks through a cache: chunks, pauses, beams and crops in any order, checked against full forwards."""

import dataclasses
import random

import pytest
import torch

from keysift.core.errors import UnsupportedError
from keysift.kernels.positions import Positions
from keysift.models.language import LanguageModel
from keysift.models.transformer import TransformerConfig
from keysift.nn.inference import Inference
from tests.models.checks import TINY, close, opened, shaken

MIXED = TransformerConfig(vocab_size=9, depth=2, heads=4, width=16, key_heads=2, mechanism=("screening", "softmax"))


def subject(draw: random.Random) -> tuple[LanguageModel, Inference]:
    inference = Inference(expand_windows=draw.choice([False, 4]))
    if draw.random() < 0.3:
        return shaken(MIXED, draw.randrange(100)), inference
    tiles = draw.randint(1, 4)
    windows = tuple(draw.choice([2.0, 2.5, 5.0, 5.5, 8.0, 60.0, 70.5]) for _ in range(tiles))
    return opened(dataclasses.replace(TINY, tiles=tiles), draw.randrange(100), windows), inference


@pytest.mark.parametrize("even", [False, True], ids=["ragged", "even"])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))])
@torch.no_grad()
def test_a_walk(seed: int, even: bool) -> None:
    """Even rows have one length all the way; ragged ones differ and pause, each token for itself."""
    draw = random.Random(seed)
    model, inference = subject(draw)
    spare = draw.choice([0, 3])
    cache = model.cache(2, inference=inference, spare=spare, start=draw.choice([0, 1000]))
    rows: list[list[int]] = [[], []]
    for _ in range(14):
        move = draw.random()
        if move < 0.15 and len(rows) < 5:
            order = [draw.randrange(len(rows)) for _ in range(draw.randint(1, 4))]
            cache.select(torch.tensor(order))
            rows = [list(rows[row]) for row in order]
        elif move < 0.35 and min(map(len, rows)) > 2:
            counts = [draw.randint(0, 2)] * len(rows) if even else [draw.randint(0, 2) for _ in rows]
            try:
                cache.crop(torch.tensor(counts))
            except UnsupportedError:
                pass
            else:
                rows = [row[: len(row) - count] for row, count in zip(rows, counts, strict=True)]
        length = draw.choice([1, 1, 1, 2, 3, 7, 20])
        tokens = torch.tensor([[draw.randrange(9) for _ in range(length)] for _ in rows])
        keep = torch.tensor([[even or draw.random() < 0.8 for _ in range(length)] for _ in rows])
        out = model(tokens, keep=None if even else keep, cache=cache)
        for number, row in enumerate(rows):
            row += tokens[number][keep[number]].tolist()
            fresh = int(keep[number].sum())
            if fresh:
                positions = Positions.counted(len(row), start=cache.start)
                full = model(torch.tensor([row]), positions=positions, inference=inference)
                close(out[number][keep[number]], full[0, -fresh:])
        assert cache.lengths == [len(row) for row in rows]
    assert sum(map(len, rows)) > 10
