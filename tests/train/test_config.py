"""What a config refuses, what it fills in, and what a resumed run may change."""

from dataclasses import replace

import pytest

from keysift.core.config import from_dict, to_dict
from keysift.train.build import build, empty, flops_per_token, model_config, state_bytes
from keysift.train.config import TrainConfig, changed, resolve
from tests.refusals import refuses


def test_the_papers_recipe_by_architecture() -> None:
    multiscreen = resolve(TrainConfig(steps=2**16), 4_000_000)
    assert (multiscreen.rate, multiscreen.weight_decay, multiscreen.clip) == (2**-4, 0.0, 0.0)
    assert (multiscreen.beta1, multiscreen.beta2, multiscreen.schedule) == (0.9, 0.95, "constant")
    assert multiscreen.warmup == 2**12
    for parameters, rate in ((45e6, 1e-3), (353e6, 3e-4), (1.3e9, 2e-4)):
        transformer = resolve(TrainConfig(arch="transformer", steps=100), int(parameters))
        assert (transformer.rate, transformer.weight_decay, transformer.clip) == (rate, 0.1, 1.0)


def test_what_is_said_is_kept() -> None:
    told = resolve(TrainConfig(arch="transformer", steps=100, rate=0.5, clip=0.0, warmup=7, weight_decay=0.0), 10)
    assert (told.rate, told.clip, told.warmup, told.weight_decay) == (0.5, 0.0, 7, 0.0)
    assert resolve(TrainConfig(minutes=1.0), 10).warmup == 50


def test_json_and_back() -> None:
    config = TrainConfig(steps=3, track=("tensorboard",))
    assert from_dict(TrainConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"context": 100, "batch_tokens": 250}, "multiple of context, got 250 and 100; the next is 300"),
        ({"arch": "transformer", "psi": 3}, "psi is the size of a Multiscreen"),
        ({"psi": 3, "width": 8}, "psi says depth, heads and width at once"),
        ({"mechanism": "softmax"}, "a Multiscreen reads with screening"),
        ({"ema": 1.0}, r"ema must lie in \[0, 1\)"),
        ({"schedule": "cosine", "minutes": 1.0}, "cosine ends with the run, so it needs steps"),
        ({"decay_share": 0.0}, r"decay_share must lie in \(0, 1\], got 0"),
        ({"beta1": 1.0}, r"beta1 must lie in \[0, 1\), got 1"),
        ({"rate": -1.0}, "rate must be above 0, got -1"),
        ({"steps": 0}, "steps must be above 0, got 0"),
        ({"clip": -1.0}, "clip must be at least 0, got -1"),
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"sample_tokens": -1}, "sample_tokens must be at least 0, got -1"),
    ],
)
def test_refusals(fields: dict[str, object], match: str) -> None:
    with refuses(match):
        TrainConfig(**fields)  # type: ignore[arg-type]


def test_a_run_needs_an_end() -> None:
    with refuses("nothing says when the run is over"):
        resolve(TrainConfig(), 10)


def test_a_resumed_run_keeps_what_its_steps_were_made_of() -> None:
    stored = resolve(TrainConfig(steps=10), 10)
    assert changed(stored, replace(stored, steps=20, every=3, rate=0.01)).steps == 20
    with refuses("keeps its seed: it was 0, got 1"):
        changed(stored, replace(stored, seed=1))
    decaying = replace(stored, schedule="wsd")
    with refuses("laid out for 10 steps, got 20"):
        changed(decaying, replace(decaying, steps=20))


def test_sizes() -> None:
    assert model_config(TrainConfig(), 257).depth == 8
    assert model_config(TrainConfig(psi=3), 257).width == 9
    own = model_config(TrainConfig(depth=2, heads=3, width=10), 257)
    assert (own.depth, own.width) == (2, 10)
    transformer = model_config(TrainConfig(arch="transformer", mechanism="sigmoid"), 257)
    assert (transformer.depth, transformer.mechanism) == (4, "sigmoid")  # type: ignore[union-attr]
    with refuses("depth, heads and width go together"):
        model_config(TrainConfig(depth=2), 257)


def test_costs_of_one_layer_by_hand() -> None:
    """One tile of key width 16 and value width 64 on width 4, 5 tokens of vocabulary, context 3."""
    config = model_config(TrainConfig(depth=1, heads=1, width=4), 5)
    model = empty(config)
    matrices = 5 * 4 + 4 * (16 + 16 + 64 + 64) + 64 * 4
    pairs = (16 + 64) * 2  # a query sees (3 + 1) / 2 keys on average
    assert flops_per_token(model, 3) == 6 * (matrices + pairs)
    scalars = sum(parameter.numel() for parameter in build(config).parameters()) - matrices
    assert state_bytes(model, ema=False) == (matrices + scalars) * 16
