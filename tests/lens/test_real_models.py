"""Pretrained models and attention maps of GPT-2, if KEYSIFT_DATA names a folder with them.

    KEYSIFT_DATA=/path python -m pytest tests/lens/test_real_models.py
    KEYSIFT_DATA=/path python -m tests.lens.test_real_models        rewrites tests/golden/gpt2_attention.json

The folder holds models/stories15M, models/stories260K and gpt2_attention/gpt2_124M_attention_examples.npz.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keysift.hub.lens_model import open_transformers_model
from keysift.kernels.call import make_call
from keysift.lens.collector import Collector
from keysift.lens.head_statistics import heads_of
from keysift.lens.inspection import inspect
from keysift.lens.layer_view import LayerView
from keysift.mechanisms import find

DATA = Path(os.environ.get("KEYSIFT_DATA", "/nowhere"))
GOLDEN = Path(__file__).parents[1] / "golden" / "gpt2_attention.json"
DIAGNOSTICS = ("effective_keys", "largest_weight", "first_mass", "previous_mass", "spread")
STORY = (
    "Once upon a time, there was a little girl named Lily. She had a big red ball that she loved more than any other "
    "toy. One day, a strong wind came and took the red ball away. Lily was very sad. In the forest she met a brown "
    'bear. "Why are you crying?" asked the bear. "I lost my red ball," said Lily.'
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="NO REAL MODELS: set KEYSIFT_DATA to the folder with the models"),
]


def gpt2(example: int) -> tuple[list[LayerView], Any]:
    """Layer views of stored scores and the stored weights. Queries are the scores and keys the identity matrix."""
    file = np.load(DATA / "gpt2_attention" / "gpt2_124M_attention_examples.npz")
    scores = torch.from_numpy(file[f"ex{example}_qk"])
    size = scores.shape[-1]
    keys = torch.eye(size).expand(1, 12, size, size)
    values = torch.eye(size).expand(1, 12, size, size)
    views = [
        LayerView(layer, make_call(find("softmax"), scores[layer][None], keys, values, scale=1 / 8), (0,))
        for layer in range(12)
    ]
    return views, file[f"ex{example}_softmax"]


def measured(example: int) -> dict[str, list[float | None]]:
    views, _ = gpt2(example)
    collector = Collector(views[0].call.k.shape[2])
    for view in views:
        collector.visit(view)
    heads = heads_of(collector.layers)
    return {
        name: [None if (v := head.values[name]) is None else float(f"{v:.5g}") for head in heads]
        for name in DIAGNOSTICS
    }


def test_gpt2_weights_are_the_stored_ones() -> None:
    for example in range(5):
        views, stored = gpt2(example)
        for view in views:
            for block in view.blocks():
                np.testing.assert_allclose(block.weights_HTS.numpy(), stored[view.layer], atol=1e-6)


def test_gpt2_diagnostics_are_the_recorded_ones() -> None:
    golden = json.loads(GOLDEN.read_text())
    for example, expected in golden.items():
        actual = measured(int(example))
        for name in DIAGNOSTICS:
            assert actual[name] == pytest.approx(expected[name], rel=1e-4), (example, name)


@pytest.mark.parametrize("name", ["stories260K", "stories15M"])
def test_a_pretrained_model(name: str) -> None:
    model = open_transformers_model(str(DATA / "models" / name))
    record = inspect(model, [STORY])
    assert record.texts[0].loss < 2.5, "the model predicts stories well"
    assert record.tests["functional"]["deletion"]["smallest"]["0.05"] < record.texts[0].tokens // 2
    assert all(abs((head.values["row_mass"] or 0) - 1) < 1e-5 for head in record.heads)
    bounds = [head.values[f"distance_tightness_{n}"] for head in record.heads for n in (5, 20)]
    assert all(bound is None or bound <= 1 + 1e-4 for bound in bounds)
    ids = model.encode(STORY)
    before = model.model(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(model.run([ids], lambda view: None)[0], before, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({str(example): measured(example) for example in (0, 3)}, separators=(",", ":")) + "\n")
