"""TrainConfig: validation, defaults, and the settings that a resumed run may change."""

from dataclasses import replace

import pytest

from keysift.core.config import from_dict, to_dict
from keysift.models.architecture import MultiscreenArch, TransformerArch
from keysift.models.registry import build, build_meta, configure
from keysift.train.config import TrainConfig, resolve, resumed
from keysift.train.preflight import flops_per_token, state_bytes
from tests.refusals import refuses


def test_default_hyperparameters_are_those_of_the_paper() -> None:
    multiscreen = resolve(TrainConfig(steps=2**16), 4_000_000)
    assert (multiscreen.lr, multiscreen.weight_decay, multiscreen.clip) == (2**-4, 0.0, 0.0)
    assert (multiscreen.beta1, multiscreen.beta2, multiscreen.schedule) == (0.9, 0.95, "constant")
    assert multiscreen.warmup == 2**12
    for parameters, lr in ((45e6, 1e-3), (353e6, 3e-4), (1.3e9, 2e-4)):
        transformer = resolve(TrainConfig(model=TransformerArch(depth=1, heads=1, width=8), steps=100), int(parameters))
        assert (transformer.lr, transformer.weight_decay, transformer.clip) == (lr, 0.1, 1.0)


def test_explicit_values_are_kept() -> None:
    config = resolve(
        TrainConfig(
            model=TransformerArch(depth=1, heads=1, width=8), steps=100, lr=0.5, clip=0.0, warmup=7, weight_decay=0.0
        ),
        10,
    )
    assert (config.lr, config.clip, config.warmup, config.weight_decay) == (0.5, 0.0, 7, 0.0)
    assert resolve(TrainConfig(minutes=1.0), 10).warmup == 50


def test_json_round_trip() -> None:
    config = TrainConfig(steps=3, track=("tensorboard",))
    assert from_dict(TrainConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"context": 100, "batch_tokens": 250}, "multiple of context, got 250 and 100; the next is 300"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\)"),
        ({"schedule": "cosine", "minutes": 1.0}, "the schedule cosine needs the number of steps"),
        ({"decay_share": 0.0}, r"decay_share must lie in \(0, 1\], got 0"),
        ({"beta1": 1.0}, r"beta1 must lie in \[0, 1\), got 1"),
        ({"lr": -1.0}, "lr must be above 0, got -1"),
        ({"steps": 0}, "steps must be above 0, got 0"),
        ({"clip": float("nan")}, "clip must be a finite number, got nan"),
        ({"minutes": float("inf")}, "minutes must be a finite number, got inf"),
        ({"lr": float("nan")}, "lr must be a finite number, got nan"),
        ({"seed": -1}, r"seed must lie in 0..2\*\*63 - 1, got -1"),
        ({"seed": 2**63}, "seed must lie in"),
        ({"clip": -1.0}, "clip must be at least 0, got -1"),
        ({"save_every": 0}, "save_every must be at least 1, got 0"),
        ({"sample_tokens": -1}, "sample_tokens must be at least 0, got -1"),
    ],
)
def test_refusals(fields: dict[str, object], match: str) -> None:
    with refuses(match):
        TrainConfig(**fields)  # type: ignore[arg-type]


def test_a_run_needs_an_end() -> None:
    with refuses("a run needs an end; add --steps or --minutes"):
        resolve(TrainConfig(), 10)


def test_a_resumed_run_keeps_its_seed_and_model() -> None:
    stored = resolve(TrainConfig(steps=10), 10)
    assert resumed(stored, replace(stored, steps=20, save_every=3, lr=0.01)).steps == 20
    with refuses("keeps its seed: it was 0, got 1"):
        resumed(stored, replace(stored, seed=1))
    with refuses("keeps its depth: it was 8, got 9"):
        resumed(stored, replace(stored, model=replace(stored.model, depth=9)))
    with refuses("keeps its arch: it was 'multiscreen', got 'transformer'"):
        resumed(stored, replace(stored, model=TransformerArch(depth=8, heads=8, width=64)))
    decaying = replace(stored, schedule="wsd")
    with refuses("computed for 10 steps, got 20"):
        resumed(decaying, replace(decaying, steps=20))


def test_flops_and_memory_of_one_layer() -> None:
    """Compare with a count by hand: one tile, key width 16, value width 64, width 4, vocabulary 5, context 3."""
    config = configure(MultiscreenArch(depth=1, tiles=1, width=4), vocab_size=5, context=3)
    model = build_meta(config)
    matrices = 5 * 4 + 4 * (16 + 16 + 64 + 64) + 64 * 4
    pairs = (16 + 64) * 2  # a query sees (3 + 1) / 2 keys on average
    assert flops_per_token(model, 3) == 6 * (matrices + pairs)
    scalars = sum(parameter.numel() for parameter in build(config).parameters()) - matrices
    assert state_bytes(matrices + scalars, ema=False) == (matrices + scalars) * 16
