"""Settings as one flat dictionary with the names of the flags: for the command line, TOML, sweeps and train.json.

    arch, preset, psi     choose a model
    depth, tiles, ...     fields of the model
    data, lr, ...         fields of TrainConfig

apply(TrainConfig(), {"arch": "transformer", "depth": 2, "mechanism": "ssmax", "lr": 1e-3})
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError, DataError
from keysift.core.registry import nearest
from keysift.core.regular_file import read_text
from keysift.models.architecture import DEFAULT_ARCHS, Arch, MultiscreenArch, arch_name, field_names
from keysift.models.presets import PRESETS
from keysift.train.config import TrainConfig, flatten

CHOICES = ("arch", "preset", "psi")
_SIZES = ("depth", "tiles", "width")
# Names of other libraries, for suggestions.
_SYNONYMS = {
    **dict.fromkeys(("learning_rate", "max_lr", "peak_lr"), "lr"),
    **dict.fromkeys(("batch_size", "tokens_per_batch", "total_batch_size"), "batch_tokens"),
    **dict.fromkeys(("seq_len", "sequence_length", "block_size", "context_length", "max_seq_len"), "context"),
    **dict.fromkeys(("max_steps", "num_steps", "max_iters", "iterations"), "steps"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "num_hidden_layers", "layers"), "depth"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "num_attention_heads"), "heads"),
    **dict.fromkeys(("n_embd", "d_model", "hidden_size", "dim"), "width"),
}
_TRAINING = tuple(field.name for field in fields(TrainConfig) if field.name != "model")


def names() -> tuple[str, ...]:
    """Names of all settings."""
    models = (name for arch in DEFAULT_ARCHS.values() for name in field_names(arch))
    return tuple(dict.fromkeys((*CHOICES, *models, *_TRAINING)))


def apply(base: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """`base` with these settings. Raises ConfigError for an unknown setting or one of another architecture."""
    model = choose(base.model, settings)
    training = {name: value for name, value in settings.items() if name in _TRAINING}
    defaults = {name: value for name, value in to_dict(base).items() if name != "model"}
    sizes = {name: value for name, value in settings.items() if name in field_names(model)}
    model = from_dict(type(model), {**to_dict(model), **sizes})
    return replace(from_dict(TrainConfig, {**defaults, **training}), model=model)


def choose(model: Arch, settings: Mapping[str, Any]) -> Arch:
    """The model that arch, preset and psi select, before its own fields apply. Refuses settings that do not fit it."""
    arch, preset, psi = (settings.get(name) for name in CHOICES)
    if preset is not None:
        model = PRESETS.find(preset).arch
        if arch is not None and arch != arch_name(model):
            raise ConfigError(f"the preset {preset} is a {arch_name(model)}, but arch is {arch}; drop one of them")
    elif arch is not None:
        if arch not in DEFAULT_ARCHS:
            raise ConfigError(f"arch must be {' or '.join(DEFAULT_ARCHS)}, got {arch!r}")
        model = model if arch == arch_name(model) else DEFAULT_ARCHS[arch]
    if psi is not None:
        model = _with_psi(model, psi, settings)
    _check_known(model, settings)
    return model


def _with_psi(model: Arch, psi: Any, settings: Mapping[str, Any]) -> MultiscreenArch:
    if not isinstance(model, MultiscreenArch):
        raise ConfigError("psi is the size of a Multiscreen; give a Transformer its depth, heads and width")
    if settings.get("preset") is not None or any(settings.get(name) is not None for name in _SIZES):
        raise ConfigError("psi sets depth, tiles and width at once; drop psi, or drop them and the preset")
    if type(psi) is not int:
        raise ConfigError(f"psi must be an integer, got {psi!r}")
    return replace(model, depth=psi, tiles=psi, width=psi**2)


def _check_known(model: Arch, settings: Mapping[str, Any]) -> None:
    known = (*CHOICES, *field_names(model), *_TRAINING)
    for name in (name for name in settings if name not in known):
        owner = next((arch for arch, default in DEFAULT_ARCHS.items() if name in field_names(default)), None)
        if owner is not None:
            raise ConfigError(
                f"{name} is a field of a {owner}, but this model is a {arch_name(model)} with the fields "
                f"{', '.join(field_names(model))}; drop it, or choose arch {owner}"
            )
        synonym = _SYNONYMS.get(name)
        advice = f"did you mean {synonym!r}? " if synonym else nearest(name, list(names()))
        raise ConfigError(f"there is no setting {name!r}; {advice}see keysift train --help")


def read_toml(path: Path, init: Path | None = None) -> TrainConfig:
    """Read a config from a TOML file with the names of the flags.

    Settings that the file leaves out come from the model to start from: `init`, or the file's own `init`.
    """
    try:
        settings = tomllib.loads(read_text(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); --config takes a TOML file, see recipes/") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number too long, nested too deeply
        raise ConfigError(f"{path} is not TOML ({error}); write lines like psi = 6") from error
    origin = str(init) if init is not None else settings.get("init")
    return apply(_base(origin), {**settings, "init": origin})


def _base(origin: str | None) -> TrainConfig:
    if origin is None:
        return TrainConfig()
    from keysift.train.init import config_from_model  # imports torch

    return config_from_model(Path(origin))


def to_toml(config: TrainConfig) -> str:
    """The TOML that `read_toml` reads back."""
    settings = {name: value for name, value in flatten(config).items() if value is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
