"""Scores of kinds of heads equal those of TransformerLens' detector, if it is installed, on stories15M."""

from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.hub.lens_model import open_transformers_model
from keysift.lens.experiments.repeated_tokens import LENGTH, SEQUENCES, _sequence
from keysift.lens.inspection import inspect
from keysift.lens.layer_view import LayerView
from keysift.lens.model import LensModel, TextSet
from tests.lens.test_real_models import DATA, STORY

detector: Any = pytest.importorskip("transformer_lens.head_detector", reason="NO TRANSFORMER_LENS: install it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason="NO REAL MODELS: set KEYSIFT_DATA to the folder with the models"),
]


def patterns(model: LensModel, ids: list[int]) -> dict[tuple[int, int], Tensor]:
    """Attention patterns of a text by layer and head, T S."""
    found: dict[tuple[int, int], Tensor] = {}

    def visit(view: LayerView) -> None:
        rows = torch.cat([block.weights_HTS for block in view.blocks()], dim=1)
        found.update({(view.layer, head): pattern for head, pattern in enumerate(rows)})

    model.run([ids], visit)
    return found


def score(pattern: Tensor, expected: Tensor, first: int) -> float:
    """The detector's score over the queries from `first` on."""
    queries = pattern.clone()
    queries[:first] = 0
    measured: float = detector.compute_head_attention_similarity_score(
        queries, expected, exclude_bos=False, exclude_current_token=False, error_measure="mul"
    )
    return measured


def test_scores_equal_the_detectors() -> None:
    model = open_transformers_model(str(DATA / "models" / "stories15M"))
    record = inspect(model, [STORY], tests=False, maps=False)
    ids = model.encode(STORY)
    previous = detector.get_previous_token_head_detection_pattern(torch.tensor([ids]))
    text_set = TextSet(model, [ids], 1)
    sequences = [_sequence(text_set, seed) for seed in range(SEQUENCES)]
    assert len(sequences[0]) == 2 * LENGTH + 1
    repeated = [patterns(model, sequence) for sequence in sequences]
    read = patterns(model, ids)
    for head in record.heads:
        place = (head.layer, head.head)
        assert head.values["previous_mass"] == pytest.approx(score(read[place], previous, 1), abs=1e-5), head.label
        for name, detect in (
            ("duplicate_mass", detector.get_duplicate_token_head_detection_pattern),
            ("induction_mass", detector.get_induction_head_detection_pattern),
        ):
            theirs = [
                score(maps[place], detect(torch.tensor([sequence])), LENGTH + 1)
                for sequence, maps in zip(sequences, repeated, strict=True)
            ]
            assert head.values[name] == pytest.approx(sum(theirs) / SEQUENCES, abs=1e-5), (head.label, name)
