"""Models agree with the papers' equations: logits and gradients of every parameter, in float64."""

import dataclasses

import pytest

from keysift.models.multiscreen import MultiscreenConfig
from keysift.models.transformer import TransformerConfig
from keysift.nn.inference import Inference
from tests.models import checks
from tests.models.checks import TINY

ABLATIONS = {
    "paper": {},
    "rope": {"position": "rope"},
    "no position": {"position": "none"},
    "no norm": {"norm": "none"},
    "no gate": {"gate": False},
    "fixed acceptance": {"acceptance": 0.875},
    "acceptance one": {"acceptance": 1.0},
    "another window threshold": {"window_threshold": 9.0},
    "nothing but screening": {"position": "none", "norm": "none", "gate": False, "acceptance": 1.0},
}
QUICK = ("paper", "another window threshold", "nothing but screening")  # in `make check`


@pytest.mark.parametrize("expand", [False, 5])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, change in ABLATIONS.items()
    ],
)
def test_multiscreen_and_its_ablations(change: dict[str, object], expand: bool | int) -> None:
    inference = Inference(expand_windows=expand)
    checks.multiscreen_matches_oracle(dataclasses.replace(TINY, **change), inference=inference)


@pytest.mark.parametrize("seed", range(4))
def test_random_sizes(seed: int) -> None:
    sizes = MultiscreenConfig(
        vocab_size=7 + seed,
        depth=1 + seed % 2,
        tiles=1 + seed % 3,
        width=5 + seed,
        key_width=2 + seed % 4,
        value_width=2 + seed,
    )
    checks.multiscreen_matches_oracle(sizes, seed=seed, windows=(3.7 + seed, 8.0), start=seed * 97)


@pytest.mark.parametrize("windows", [(255.0, 255.9, 256.0), (257.0, 300.0, 1000.0), (2.0, 4.0, 40.0)])
def test_windows_around_the_threshold(windows: tuple[float, ...]) -> None:
    checks.multiscreen_matches_oracle(windows=windows, start=1000, seed=2)


def test_window_equal_to_the_training_length_is_not_expanded() -> None:
    """w = 6.0 is not strictly greater than a training length of 6."""
    checks.multiscreen_matches_oracle(inference=Inference(expand_windows=6))


def test_scaled_rope_in_the_ablation() -> None:
    checks.multiscreen_matches_oracle(
        dataclasses.replace(TINY, position="rope"), inference=Inference(rope_factor=4.0), start=100
    )


TRANSFORMER = TransformerConfig(vocab_size=9, depth=2, heads=4, width=8)


@pytest.mark.parametrize(
    "change",
    [{}, {"qk_norm": True}, {"position": "none"}, {"key_heads": 2}, {"rope_theta": 100.0}, {"initial_std": "version1"}],
    ids=str,
)
def test_transformer(change: dict[str, object]) -> None:
    checks.transformer_matches_oracle(dataclasses.replace(TRANSFORMER, **change))


def test_transformer_with_scaled_rope() -> None:
    checks.transformer_matches_oracle(TRANSFORMER, factor=8.0, start=50)
