"""One flat list of settings: every field of every model is set, swept, written and read back by its name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keysift.cli.main import parse
from keysift.models.arch import DEFAULTS, MultiscreenArch, TransformerArch, field_names
from keysift.models.presets import PRESETS
from keysift.runs.directory import Run
from keysift.runs.layout import newest
from keysift.sweep.plan import points
from keysift.train.config import TrainConfig, flatten
from keysift.train.config_file import read_toml, to_toml
from keysift.train.facts import Facts, read_facts, write_facts
from keysift.train.match import matched
from keysift.train.settings import apply
from tests.refusals import refuses
from tests.train.in_process import go

# Another value of every field, as words of a command line and as a value.
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
}
TRANSFORMER: dict[str, tuple[str, Any]] = {
    "depth": ("3", 3),
    "heads": ("2", 2),
    "width": ("64", 64),
    "key_heads": ("2", 2),
    "mechanism": ("softmax ssmax sigmoid softmax", ("softmax", "ssmax", "sigmoid", "softmax")),
    "position": ("none", "none"),
    "rope_theta": ("500", 500.0),
    "rope_rates": ("linear:factor=2", "linear:factor=2"),
    "qk_norm": ("", True),
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
    for arch, known in (("multiscreen", MULTISCREEN), ("transformer", TRANSFORMER))
    for name, (words, value) in known.items()
]


def test_every_field_is_tried() -> None:
    assert tuple(MULTISCREEN) == field_names(DEFAULTS["multiscreen"])
    assert tuple(TRANSFORMER) == field_names(DEFAULTS["transformer"])


@pytest.mark.parametrize(("arch", "name", "words", "value"), FIELDS, ids=lambda value: str(value)[:20])
def test_every_field_of_a_model_by_every_way(arch: str, name: str, words: str, value: Any, tmp_path: Path) -> None:
    wanted = replace(DEFAULTS[arch], **{name: value})
    assert wanted != DEFAULTS[arch]
    flag = f"--no-{name}" if value is False else f"--{name}"
    assert parse(["train", "--arch", arch, flag.replace("_", "-"), *words.split()]).train.model == wanted
    config = TrainConfig(model=wanted, steps=3)
    (tmp_path / "own.toml").write_text(to_toml(config))
    assert read_toml(tmp_path / "own.toml") == config
    told = str(value).lower() if isinstance(value, bool) else value
    if not isinstance(value, tuple):
        (swept,) = points(TrainConfig(steps=3), (f"arch={arch} {name}={told}",), ()).values()
        assert swept.model == wanted
    facts = Facts(config=config, stream="", parameters=1, flops_per_token=1.0, bytes_per_token=1.0)
    write_facts(Run(tmp_path), facts)
    assert read_facts(Run(tmp_path)) == facts


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "steps = " + "9" * 5000, "steps = \x00"], ids=len)
def test_a_file_that_no_parser_survives_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    with refuses("own.toml is not TOML"):
        read_toml(tmp_path / "own.toml")


def test_every_ablation_trains(tiny: TrainConfig, tmp_path: Path) -> None:
    small = {"depth": 2, "steps": 1, "sample_tokens": 0}
    multiscreen = {"position": "rope", "norm": "none", "gate": False, "acceptance": 0.5, "key_width": 4}
    transformer = {"heads": 2, "width": 8, "key_heads": 1, "mechanism": ["ssmax", "sigmoid"], "qk_norm": True}
    for arch, settings in (("multiscreen", multiscreen), ("transformer", transformer)):
        config = apply(tiny, {"arch": arch, **small, **settings})
        run = go(config, tmp_path / arch)
        assert read_facts(Run(run)).config.model == config.model


def test_choosing_a_model() -> None:
    base = TrainConfig()
    assert apply(base, {"psi": 6}).model == MultiscreenArch.psi(6)
    assert apply(base, {"preset": "transformer-8m"}).model == PRESETS.find("transformer-8m").arch
    assert apply(base, {"preset": "transformer-8m", "mechanism": "ssmax"}).arch == "transformer"
    # Naming the architecture that is there already changes nothing.
    assert apply(apply(base, {"psi": 3}), {"arch": "multiscreen", "gate": False}).model.depth == 3
    assert flatten(base)["arch"] == "multiscreen"


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"arch": "transformer", "psi": 3}, "psi is the size of a Multiscreen"),
        ({"psi": 3, "width": 8}, "psi says depth, tiles and width at once"),
        ({"psi": 3, "preset": "multiscreen-psi8"}, "psi says depth, tiles and width at once"),
        ({"psi": "3"}, "psi must be an integer, got '3'"),
        ({"mechanism": "softmax"}, "mechanism is a field of a transformer, and this is a multiscreen"),
        ({"arch": "transformer", "tiles": 2}, "tiles is a field of a multiscreen, and this is a transformer"),
        ({"arch": "transformer", "preset": "multiscreen-psi8"}, "preset multiscreen-psi8 is a multiscreen, and arch"),
        ({"arch": "mamba"}, "arch must be multiscreen or transformer, got 'mamba'"),
        ({"depht": 3}, "no setting is called 'depht'; did you mean 'depth'"),
        ({"depth": "many"}, "MultiscreenArch.depth must be an integer, got 'many'"),
    ],
)
def test_refusals(settings: dict[str, Any], match: str) -> None:
    with refuses(match):
        apply(TrainConfig(), settings)


def test_matching_parameters(tiny: TrainConfig, tmp_path: Path) -> None:
    run = go(replace(tiny, steps=1, sample_tokens=0), tmp_path / "run")
    wanted = read_facts(Run(run)).parameters
    transformer = replace(tiny, model=TransformerArch(depth=1, heads=2, width=64))
    found, said = matched(transformer, str(run))
    assert f"{wanted:,}" in said
    assert matched(transformer, str(newest(run)))[0] == found, "a saved model says the same"
    made = [go(replace(found, steps=1, sample_tokens=0), tmp_path / "matched")]
    near = read_facts(Run(made[0])).parameters
    assert f"{near:,}" in said
    assert f"({near / wanted - 1:+.2%})" in said
    for width in (found.model.width - 4, found.model.width + 4):
        other, _ = go(replace(found, model=replace(found.model, width=width), steps=1), tmp_path / str(width)), None
        assert abs(read_facts(Run(other)).parameters - wanted) >= abs(near - wanted), "no width is nearer"
    multiscreen, said = matched(tiny, "transformer-8m")
    assert isinstance(multiscreen.model, MultiscreenArch)
    assert "transformer-8m has" in said
    with refuses("takes a run, a saved model or a preset, and nowhere is none"):
        matched(tiny, "nowhere")
