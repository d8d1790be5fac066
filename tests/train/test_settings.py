"""Settings: every field of a model can be set by flag, TOML file and sweep, and is read back from the manifest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keysift.cli.main import parse
from keysift.models.architecture import DEFAULT_ARCHS, MultiscreenArch, TransformerArch, field_names
from keysift.models.presets import PRESETS
from keysift.runs.directory import Run
from keysift.runs.layout import newest_checkpoint
from keysift.sweep.plan import plan_runs
from keysift.train.config import TrainConfig, flatten
from keysift.train.manifest import RunManifest, read_manifest, write_manifest
from keysift.train.preflight import match_parameters
from keysift.train.settings import apply, read_toml, to_toml
from tests.refusals import refuses
from tests.train.in_process import run_training

# For every field a value other than the default, as command-line words and as a Python value.
MULTISCREEN: dict[str, tuple[str, Any]] = {
    "depth": ("3", 3),
    "tiles": ("2", 2),
    "width": ("7", 7),
    "key_width": ("6", 6),
    "value_width": ("5", 5),
    "position": ("rope", "rope"),
    "norm": ("none", "none"),
    "gate": ("", False),
    "acceptance": ("0.25", 0.25),
    "acceptance_start": ("0.5 0.9", (0.5, 0.9)),
    "window_threshold": ("128", 128.0),
}
TRANSFORMER: dict[str, tuple[str, Any]] = {
    "depth": ("3", 3),
    "heads": ("2", 2),
    "width": ("64", 64),
    "key_heads": ("2", 2),
    "mechanism": ("softmax ssmax sigmoid softmax", ("softmax", "ssmax", "sigmoid", "softmax")),
    "position": ("rope none", ("rope", "none")),
    "window": ("8 8 8 0", (8, 8, 8, 0)),
    "kept": ("2 --window 8", 2),
    "rope_theta": ("500", 500.0),
    "rope_share": ("0.5", 0.5),
    "rope_rates": ("linear:factor=2", "linear:factor=2"),
    "qk_norm": ("", True),
    "qk_gains": ("per_head --qk-norm", "per_head"),
    "shift": ("keys", "keys"),
    "head_width": ("6", 6),
    "hidden_width": ("40", 40),
    "norm_eps": ("1e-6", 1e-6),
    "final_gain": ("", True),
    "tied_embeddings": ("", False),
    "attention_bias": ("qkv", "qkv"),
    "initial_std": ("version1", "version1"),
}
FIELDS = [
    (arch, name, words, value)
    for arch, fields in (("multiscreen", MULTISCREEN), ("transformer", TRANSFORMER))
    for name, (words, value) in fields.items()
]


def test_every_field_is_listed() -> None:
    assert tuple(MULTISCREEN) == field_names(DEFAULT_ARCHS["multiscreen"])
    assert tuple(TRANSFORMER) == field_names(DEFAULT_ARCHS["transformer"])


@pytest.mark.parametrize(("arch", "name", "words", "value"), FIELDS, ids=lambda value: str(value)[:20])
def test_a_field_is_set_by_flag_file_and_sweep(arch: str, name: str, words: str, value: Any, tmp_path: Path) -> None:
    # Kept keys need a window, and gains a norm.
    more = {"kept": {"window": 8}, "qk_gains": {"qk_norm": True}}.get(name, {})
    expected = replace(DEFAULT_ARCHS[arch], **{name: value, **more})
    assert expected != DEFAULT_ARCHS[arch]
    flag = f"--no-{name}" if value is False else f"--{name}"
    assert parse(["train", "--arch", arch, flag.replace("_", "-"), *words.split()]).train.model == expected
    config = TrainConfig(model=expected, steps=3)
    (tmp_path / "own.toml").write_text(to_toml(config))
    assert read_toml(tmp_path / "own.toml") == config
    swept_value = str(value).lower() if isinstance(value, bool) else value
    if not isinstance(value, tuple) and not more:
        (swept,) = plan_runs(TrainConfig(steps=3), (f"arch={arch} {name}={swept_value}",), ()).values()
        assert swept.model == expected
    manifest = RunManifest(config=config, stream="", parameters=1, flops_per_token=1.0, bytes_per_token=1.0)
    write_manifest(Run(tmp_path), manifest)
    assert read_manifest(Run(tmp_path)) == manifest


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "steps = " + "9" * 5000, "steps = \x00"], ids=len)
def test_invalid_toml_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    with refuses("own.toml is not TOML"):
        read_toml(tmp_path / "own.toml")


def test_every_ablation_trains(tiny: TrainConfig, tmp_path: Path) -> None:
    small = {"depth": 2, "steps": 1, "sample_tokens": 0}
    multiscreen = {"position": "rope", "norm": "none", "gate": False, "acceptance": 0.5, "key_width": 4}
    transformer = {"heads": 2, "width": 8, "key_heads": 1, "mechanism": ["ssmax", "sigmoid"], "qk_norm": True}
    transformer |= {"shift": "both", "qk_gains": "per_head"}
    for arch, settings in (("multiscreen", multiscreen), ("transformer", transformer)):
        config = apply(tiny, {"arch": arch, **small, **settings})
        run = run_training(config, tmp_path / arch)
        assert read_manifest(Run(run)).config.model == config.model


def test_psi_preset_and_arch_choose_the_model() -> None:
    base = TrainConfig()
    assert apply(base, {"psi": 6}).model == MultiscreenArch.psi(6)
    assert apply(base, {"preset": "transformer-8m"}).model == PRESETS.find("transformer-8m").arch
    assert apply(base, {"preset": "transformer-8m", "mechanism": "ssmax"}).arch == "transformer"
    # Naming the current architecture changes nothing.
    assert apply(apply(base, {"psi": 3}), {"arch": "multiscreen", "gate": False}).model.depth == 3
    assert flatten(base)["arch"] == "multiscreen"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"arch": "transformer", "psi": 3}, "psi is the size of a Multiscreen"),
        ({"psi": 3, "width": 8}, "psi sets depth, tiles and width at once"),
        ({"psi": 3, "preset": "multiscreen-psi8"}, "psi sets depth, tiles and width at once"),
        ({"psi": "3"}, "psi must be an integer, got '3'"),
        ({"mechanism": "softmax"}, "mechanism is a field of a transformer, but this model is a multiscreen"),
        ({"arch": "transformer", "tiles": 2}, "tiles is a field of a multiscreen, but this model is a transformer"),
        ({"arch": "transformer", "preset": "multiscreen-psi8"}, "preset multiscreen-psi8 is a multiscreen, but arch"),
        ({"arch": "mamba"}, "arch must be multiscreen or transformer, got 'mamba'"),
        ({"depht": 3}, "there is no setting 'depht'; did you mean 'depth'"),
        ({"depth": "many"}, "MultiscreenArch.depth must be an integer, got 'many'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], match: str) -> None:
    with refuses(match):
        apply(TrainConfig(), settings)


def test_matching_parameters(tiny: TrainConfig, tmp_path: Path) -> None:
    run = run_training(replace(tiny, steps=1, sample_tokens=0), tmp_path / "run")
    target = read_manifest(Run(run)).parameters
    transformer = replace(tiny, model=TransformerArch(depth=1, heads=2, width=64))
    matched, message = match_parameters(transformer, str(run))
    assert f"{target:,}" in message
    assert match_parameters(transformer, str(newest_checkpoint(run)))[0] == matched, (
        "a saved model gives the same result"
    )
    matched_run = run_training(replace(matched, steps=1, sample_tokens=0), tmp_path / "matched")
    count = read_manifest(Run(matched_run)).parameters
    assert f"{count:,}" in message
    assert f"({count / target - 1:+.2%})" in message
    for width in (matched.model.width - 4, matched.model.width + 4):
        wider_or_narrower = replace(matched, model=replace(matched.model, width=width), steps=1)
        neighbour = run_training(wider_or_narrower, tmp_path / str(width))
        assert abs(read_manifest(Run(neighbour)).parameters - target) >= abs(count - target), (
            "no neighbouring width is closer"
        )
    multiscreen, message = match_parameters(tiny, "transformer-8m")
    assert isinstance(multiscreen.model, MultiscreenArch)
    assert "transformer-8m has" in message
    with refuses("takes a run, a saved model or a preset, got nowhere"):
        match_parameters(tiny, "nowhere")
