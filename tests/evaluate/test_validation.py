"""The loss of a batch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.data.batches import Batch
from keysift.data.shards import prepare
from keysift.evaluate import validation
from keysift.train.config import TrainConfig
from keysift.train.source import Text


def test_isolated_documents_are_learned_alone(tiny: TrainConfig, tmp_path: Path) -> None:
    """The loss of a packed row is that of its documents, each read by itself; without isolation it is not."""
    (tmp_path / "text").mkdir()
    for number in range(30):
        (tmp_path / "text" / f"{number:02d}.txt").write_text("abcdefghijklmnopqrstuvwxyz"[number % 7 :][:9])
    config = replace(tiny, data=str(tmp_path / "text"), context=32, batch_tokens=64, isolate=True)
    batch = Text(prepare(config.data, config.tokenizer, show=False)).training(config).batch(0)
    model = keysift.Multiscreen(keysift.MultiscreenConfig.psi(2, vocab_size=257))
    with torch.no_grad():
        for layer in model.layers:
            layer.scalars.s_r.fill_(2.0)  # open: a key of another document would be accepted
        together = float(validation.summed_loss(model, batch))
        alone = 0.0
        assert batch.positions is not None
        assert batch.positions.pieces is not None
        for row, first, count, *_ in batch.positions.pieces.tolist():
            inputs, targets = (x[row : row + 1, first : first + count] for x in (batch.inputs, batch.targets))
            alone += float(validation.summed_loss(model, Batch(inputs=inputs, targets=targets, rows=(row,))))
        mixed = float(validation.summed_loss(model, replace(batch, positions=None)))
    assert len(batch.positions.pieces) > 3
    assert together == pytest.approx(alone, rel=1e-5)
    assert together != pytest.approx(mixed, rel=1e-5)
