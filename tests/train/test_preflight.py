"""Runs that cannot fit into memory are refused before a model is built."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from keysift.models.architecture import DEFAULT_ARCHS, MultiscreenArch, TransformerArch
from keysift.models.language_model import count_parameters
from keysift.models.presets import PRESETS, VOCABULARY
from keysift.models.registry import build_meta, configure
from keysift.train import preflight
from keysift.train.config import TrainConfig
from keysift.train.distributed import World
from keysift.train.preflight import estimate
from tests.refusals import refuses
from tests.train.in_process import run_training


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"model": MultiscreenArch.psi(10**6)}, "this model has at least .* parameters"),
        ({"model": TransformerArch(depth=10**9, heads=1, width=512)}, "this model has at least .* parameters"),
        ({"model": MultiscreenArch.psi(300)}, "the training state needs about .* GB"),
        ({"batch_tokens": 32 * 10**12}, "a step of 32,000,000,000,000 tokens needs about"),
        ({"context": 2**34, "batch_tokens": 2**34}, "needs about .* GB"),
        (
            {"micro_tokens": 2**29, "batch_tokens": 2**29},
            "a pass over 536,870,912 tokens needs about .* lower --micro-tokens",
        ),
        ({"device": "meta"}, "device 'meta' cannot be used here"),
    ],
)
def test_too_large_runs_are_refused_at_once(
    tiny: TrainConfig, tmp_path: Path, fields: dict[str, Any], match: str
) -> None:
    run_training(replace(tiny, steps=1, sample_tokens=0), tmp_path / "first")  # fills the corpus cache
    start = time.perf_counter()
    with refuses(match):
        run_training(replace(tiny, **fields), tmp_path / "run")
    assert time.perf_counter() - start < 5
    assert not (tmp_path / "run").exists()


def test_a_dry_run_is_refused_too(tiny: TrainConfig) -> None:
    with refuses("this model has at least .* parameters"):
        estimate(replace(tiny, model=MultiscreenArch.psi(10**6)))
    with refuses("a step of 32,000,000,000,000 tokens needs about"):
        estimate(replace(tiny, batch_tokens=32 * 10**12))


def test_min_parameters_is_a_lower_bound() -> None:
    for preset in PRESETS:
        assert 0.5 * preset.counts()[0] < preflight.min_parameters(preset.arch, VOCABULARY) <= preset.counts()[0]
    small = [*DEFAULT_ARCHS.values(), MultiscreenArch.psi(3, gate=False, key_width=2, value_width=1)]
    small += [TransformerArch(depth=2, heads=4, width=16, key_heads=1)]
    for model in small:
        built = count_parameters(build_meta(configure(model, vocab_size=257, context=16)))
        assert preflight.min_parameters(model, 257) <= built


def test_memory_of_a_gpu(tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**4, 10**5))
    gpu = World(0, 1, torch.device("cuda"))
    with refuses("the training state needs about .* are free on cuda"):
        preflight.check_memory(tiny, 257, gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9))
    preflight.check_memory(tiny, 257, gpu)
