"""Settings by the names of the flags, one flat list for the command line, TOML files, sweeps and train.json.

    arch, preset, psi     choose a model
    depth, tiles, ...     its fields
    data, lr, ...         the fields of training

apply(TrainConfig(), {"arch": "transformer", "depth": 2, "mechanism": "ssmax", "lr": 1e-3})
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError
from keysift.core.registry import nearest
from keysift.models.arch import DEFAULTS, Arch, MultiscreenArch, arch_name, field_names
from keysift.train.config import TrainConfig

CHOICES = ("arch", "preset", "psi")
_SIZES = ("depth", "tiles", "width")
_TRAINING = tuple(field.name for field in fields(TrainConfig) if field.name != "model")


def names() -> tuple[str, ...]:
    """Everything that can be set."""
    models = (name for arch in DEFAULTS.values() for name in field_names(arch))
    return tuple(dict.fromkeys((*CHOICES, *models, *_TRAINING)))


def apply(base: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """`base` with these settings; one that is unknown, or belongs to another architecture, is refused."""
    model = choose(base.model, settings)
    training = {name: value for name, value in settings.items() if name in _TRAINING}
    told = {name: value for name, value in to_dict(base).items() if name != "model"}
    own = {name: value for name, value in settings.items() if name in field_names(model)}
    changed = from_dict(type(model), {**to_dict(model), **own})
    return replace(from_dict(TrainConfig, {**told, **training}), model=changed)


def choose(model: Arch, settings: Mapping[str, Any]) -> Arch:
    """The model that arch, preset and psi choose, before its own fields are changed; refuses what does not fit it."""
    arch, preset, psi = (settings.get(name) for name in CHOICES)
    if preset is not None:
        from keysift.models.presets import PRESETS  # its models need torch

        model = PRESETS.find(preset).arch
        if arch is not None and arch != arch_name(model):
            raise ConfigError(f"the preset {preset} is a {arch_name(model)}, and arch says {arch}; drop one of them")
    elif arch is not None:
        if arch not in DEFAULTS:
            raise ConfigError(f"arch must be {' or '.join(DEFAULTS)}, got {arch!r}")
        model = model if arch == arch_name(model) else DEFAULTS[arch]
    if psi is not None:
        model = _of_psi(model, psi, settings)
    _refuse_foreign(model, settings)
    return model


def _of_psi(model: Arch, psi: Any, settings: Mapping[str, Any]) -> MultiscreenArch:
    if not isinstance(model, MultiscreenArch):
        raise ConfigError("psi is the size of a Multiscreen; give a Transformer its depth, heads and width")
    if settings.get("preset") is not None or any(settings.get(name) is not None for name in _SIZES):
        raise ConfigError("psi says depth, tiles and width at once; leave it out, or leave them and the preset out")
    if type(psi) is not int:
        raise ConfigError(f"psi must be an integer, got {psi!r}")
    return replace(model, depth=psi, tiles=psi, width=psi**2)


def _refuse_foreign(model: Arch, settings: Mapping[str, Any]) -> None:
    known = (*CHOICES, *field_names(model), *_TRAINING)
    for name in (name for name in settings if name not in known):
        owner = next((arch for arch, default in DEFAULTS.items() if name in field_names(default)), None)
        if owner is not None:
            raise ConfigError(
                f"{name} is a field of a {owner}, and this is a {arch_name(model)}, whose fields are "
                f"{', '.join(field_names(model))}; drop it, or choose arch {owner}"
            )
        raise ConfigError(f"no setting is called {name!r}; {nearest(name, list(names()))}see keysift train --help")
