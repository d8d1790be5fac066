"""The loss of a batch."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import keysift
from keysift.data.batches import Batch
from keysift.data.shards import prepare
from keysift.models import losses
from keysift.train.config import TrainConfig
from keysift.train.source import TextSource


def test_isolated_documents_have_the_loss_of_each_alone(tiny: TrainConfig, tmp_path: Path) -> None:
    """The loss of a packed row equals the sum over its documents alone. Without isolation it differs."""
    (tmp_path / "text").mkdir()
    for number in range(30):
        (tmp_path / "text" / f"{number:02d}.txt").write_text("abcdefghijklmnopqrstuvwxyz"[number % 7 :][:9])
    config = replace(tiny, data=str(tmp_path / "text"), context=32, batch_tokens=64, isolate=True)
    batch = TextSource(prepare(config.data, config.tokenizer, show=False)).training(config).batch(0)
    model = keysift.Multiscreen(keysift.MultiscreenConfig.psi(2, vocab_size=257))
    with torch.no_grad():
        for layer in model.layers:
            layer.scalars.s_r.fill_(2.0)  # wide acceptance, so that keys of other documents would be accepted
        packed = float(losses.batch_loss(model, batch).loss)
        alone = 0.0
        assert batch.positions is not None
        assert batch.positions.segments is not None
        for row, first, count, *_ in batch.positions.segments.tolist():
            inputs, targets = (x[row : row + 1, first : first + count] for x in (batch.inputs, batch.targets))
            alone += float(losses.batch_loss(model, Batch(inputs=inputs, targets=targets, rows=(row,))).loss)
        mixed = float(losses.batch_loss(model, replace(batch, positions=None)).loss)
    assert len(batch.positions.segments) > 3
    assert packed == pytest.approx(alone, rel=1e-5)
    assert packed != pytest.approx(mixed, rel=1e-5)
