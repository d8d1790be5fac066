"""Learning rate schedules, compared with values computed by hand."""

import pytest

from keysift.train.config import TrainConfig
from keysift.train.schedule import lr_multiplier


def rates(steps: int, **fields: object) -> list[float]:
    config = TrainConfig(steps=steps, **fields)  # type: ignore[arg-type]
    return [lr_multiplier(config, step) for step in range(steps)]


def test_warmup_then_constant() -> None:
    assert rates(6, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rates(2, warmup=0) == [1.0, 1.0]


def test_cosine_decays_to_the_final_lr() -> None:
    assert rates(6, warmup=2, schedule="cosine", final_lr=0.2) == pytest.approx(
        [0.5, 1.0, 1.0, 0.2 + 0.8 * 0.853553, 0.6, 0.2 + 0.8 * 0.146447], abs=1e-6
    )


def test_wsd_decays_at_the_end() -> None:
    assert rates(10, warmup=2, schedule="wsd", decay_share=0.4) == pytest.approx(
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    )
