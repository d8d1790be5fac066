"""Maps of a record: exact for the largest weights, close for all pairs, and within their size."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from keysift.lens.diagnostics.text_maps import CODES, MOST_EXACT, MapCollector
from keysift.lens.layer_view import LayerView
from keysift.records import lens as records
from keysift.records.lens_maps import NO_KEY, TextMaps
from tests.lens.models import LINE, multiscreen, transformer

IDS = list((LINE * 3).encode())


def collected(model: object, share: float) -> tuple[TextMaps, dict[int, tuple[torch.Tensor, torch.Tensor]]]:
    softmax = set(model.info.mechanisms) == {"softmax"}  # type: ignore[attr-defined]
    collector = MapCollector(["x"] * len(IDS), sum(model.info.heads), softmax=softmax, share=share)  # type: ignore[attr-defined]
    truth = {}

    def visit(view: LayerView) -> None:
        collector.visit(view, 0)
        blocks = list(view.text_blocks(0))
        assert len(blocks) == 1
        scores = blocks[0].scores_HTS.masked_fill(~blocks[0].visible_HTS, -math.inf)
        truth[view.layer] = (scores, blocks[0].weights_HTS)

    model.run([IDS], visit)  # type: ignore[attr-defined]
    return collector.maps(0), truth


@pytest.mark.parametrize("share", [1.0, 0.01, 0.002])
@pytest.mark.parametrize(
    "model",
    [transformer(), multiscreen(), transformer("differential_v1")],
    ids=["softmax", "screening", "differential"],
)
def test_maps_hold_the_scores_and_weights(model: object, share: float) -> None:
    maps, truth = collected(model, share)
    side, pool = -(-len(IDS) // maps.pool), maps.pool
    cells, count, per_layer = side * (side + 1) // 2, len(maps.queries), len(maps.heads) // 2
    read = {name: np.array(maps.read(name)) for name in maps.arrays}
    keys, scores = (read[name].reshape(-1, count, maps.keys) for name in ("key_at", "score_at"))
    weights = read["weight_at"].reshape(keys.shape) if "weight_at" in read else None
    codes = read["score_codes"].reshape(-1, cells)
    low, step = (read[name].reshape(-1, side) for name in ("score_low", "score_step"))
    for index, head in enumerate(maps.heads):
        true_scores, true_weights = (x[index % per_layer].double().numpy() for x in truth[head.layer])
        for row, query in enumerate(maps.queries):
            stored = keys[index, row][keys[index, row] != NO_KEY]
            assert len(stored) == min(maps.keys, query + 1)
            assert scores[index, row][: len(stored)] == pytest.approx(true_scores[query, stored], abs=1e-6)
            left_out = np.delete(np.abs(true_weights[query, : query + 1]), stored)
            assert left_out.size == 0 or left_out.max() <= np.abs(true_weights[query, stored]).min() + 1e-8
            if head.rule == "softmax":
                above = scores[index, row][: len(stored)].astype(np.float64)
                above -= above.max()
                rest = np.exp(float(read["rest"].reshape(-1, count)[index, row]))
                weight = np.exp(above) / (np.exp(above).sum() + rest)
                assert weight == pytest.approx(true_weights[query, stored], abs=1e-6)
            else:
                assert weights is not None
                assert weights[index, row][: len(stored)] == pytest.approx(true_weights[query, stored], abs=1e-6)
        for g in range(side):
            for s in range(g + 1):
                code = codes[index, g * (g + 1) // 2 + s]
                block = true_scores[g * pool : (g + 1) * pool, s * pool : (s + 1) * pool]
                if code:
                    value = low[index, g] + (code - 1) * step[index, g]
                    assert value == pytest.approx(block.max(), abs=0.51 * float(step[index, g]) + 1e-5)
        if "weight_codes" in read:
            _check_weight_codes(
                read["weight_codes"].reshape(-1, cells)[index], float(read["peak"][index]), true_weights, pool
            )


def _check_weight_codes(codes: np.ndarray, peak: float, weights: np.ndarray, pool: int) -> None:  # type: ignore[type-arg]
    side = -(-len(weights) // pool)
    for g in range(side):
        for s in range(g + 1):
            block = np.abs(weights[g * pool : (g + 1) * pool, s * pool : (s + 1) * pool])
            code = int(codes[g * (g + 1) // 2 + s]) & 63
            value = peak * 10 ** ((code - 63) / 10) if code else 0.0
            assert value == pytest.approx(block.max(), rel=0.13, abs=peak * 1e-6)


def test_sizes_of_long_texts_are_bounded() -> None:
    for tokens, heads in ((256, 36), (2000, 36), (2000, 270), (20, 6000)):
        collector = MapCollector(["x"] * tokens, heads, softmax=True)
        side = -(-tokens // collector.pool)
        assert heads * side * (side + 1) // 2 * (1 if collector.pool == 1 else 2) <= CODES
        assert heads * len(collector.queries) * collector.keys <= MOST_EXACT * 1.05
        assert collector.queries[-1] == tokens - 1
    assert MapCollector(["x"] * 256, 36, softmax=True).pool == 1


def test_maps_survive_a_record_file(tmp_path: Path) -> None:
    from keysift.lens.inspection import inspect

    record = inspect(transformer(), {"one": LINE, "two": LINE[:20]}, tests=False, swap=["sparsemax"], batch=2)
    assert [(maps.text, maps.swap, len(maps.tokens)) for maps in record.maps] == [
        (0, None, len(LINE)),
        (1, None, 20),
        (0, "sparsemax", len(LINE)),
    ]
    record.save(tmp_path / "record.json")
    loaded = records.load(tmp_path / "record.json")
    assert loaded.maps == record.maps
    assert loaded.findings == record.findings
    assert loaded.maps[2].heads[0].rule == "other"
    assert inspect(transformer(), [LINE], tests=False, maps=False).maps == ()
