"""Real pretrained models and real GPT-2 maps, for those who have them: KEYSIFT_DATA names the folder.

    KEYSIFT_DATA=/path python -m pytest tests/lens/test_real_models.py
    KEYSIFT_DATA=/path python -m tests.lens.test_real_models        writes tests/golden/gpt2_attention.json anew

The folder holds models/stories15M, models/stories260K and gpt2_attention/gpt2_124M_attention_examples.npz.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keysift.hub.subject import open_pretrained
from keysift.kernels.call import check
from keysift.lens.collect import Collector
from keysift.lens.examine import heads_of, inspect
from keysift.lens.reading import Reading
from keysift.mechanisms import find

DATA = Path(os.environ.get("KEYSIFT_DATA", "/nowhere"))
GOLDEN = Path(__file__).parents[1] / "golden" / "gpt2_attention.json"
KEPT = ("effective_keys", "largest_weight", "first_mass", "previous_mass", "spread")
STORY = (
    "Once upon a time, there was a little girl named Lily. She had a big red ball that she loved more than any other "
    "toy. One day, a strong wind came and took the red ball away. Lily was very sad. In the forest she met a brown "
    'bear. "Why are you crying?" asked the bear. "I lost my red ball," said Lily.'
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="NO REAL MODELS: set KEYSIFT_DATA to the folder that holds them"),
]


def gpt2(example: int) -> tuple[list[Reading], Any]:
    """Scores are given, not q and k: q is the scores and k the identity."""
    file = np.load(DATA / "gpt2_attention" / "gpt2_124M_attention_examples.npz")
    scores = torch.from_numpy(file[f"ex{example}_qk"])
    size = scores.shape[-1]
    keys = torch.eye(size).expand(1, 12, size, size)
    values = torch.eye(size).expand(1, 12, size, size)
    readings = [
        Reading(layer, check(find("softmax"), scores[layer][None], keys, values, scale=1 / 8), (0,))
        for layer in range(12)
    ]
    return readings, file[f"ex{example}_softmax"]


def measured(example: int) -> dict[str, list[float | None]]:
    readings, _ = gpt2(example)
    collector = Collector(readings[0].call.k.shape[2])
    for reading in readings:
        collector.visit(reading)
    heads = heads_of(collector)
    return {name: [None if (v := head.values[name]) is None else float(f"{v:.5g}") for head in heads] for name in KEPT}


def test_gpt2_weights_are_the_stored_ones() -> None:
    for example in range(5):
        readings, stored = gpt2(example)
        for reading in readings:
            for block in reading.blocks():
                np.testing.assert_allclose(block.weights_HTS.numpy(), stored[reading.layer], atol=1e-6)


def test_gpt2_diagnostics_are_the_recorded_ones() -> None:
    golden = json.loads(GOLDEN.read_text())
    for example, wanted in golden.items():
        found = measured(int(example))
        for name in KEPT:
            assert found[name] == pytest.approx(wanted[name], rel=1e-4), (example, name)


@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_a_pretrained_model(name: str) -> None:
    subject = open_pretrained(str(DATA / "models" / name))
    record = inspect(subject, [STORY])
    assert record.texts[0].loss < 2.5, "it has learned to tell stories"
    assert record.tests["functional"]["deletion"]["smallest"]["0.05"] < record.texts[0].tokens // 2
    assert all(abs((head.values["row_mass"] or 0) - 1) < 1e-5 for head in record.heads)
    bounds = [head.values[f"distance_tightness_{n}"] for head in record.heads for n in (5, 20)]
    assert all(bound is None or bound <= 1 + 1e-4 for bound in bounds)
    ids = subject.encode(STORY)
    before = subject.model(torch.tensor([ids])).logits[0]
    assert torch.equal(subject.run([ids], lambda reading: None)[0], before) or torch.allclose(
        subject.run([ids], lambda reading: None)[0], before, atol=1e-5
    )


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({str(example): measured(example) for example in (0, 3)}, separators=(",", ":")) + "\n")
