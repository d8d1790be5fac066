"""Which runs a sweep makes: a list of settings crossed with a grid."""

import itertools
import os
from typing import Any

from keysift.core import jsons
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig
from keysift.train.settings import apply, names


def points(base: TrainConfig, each: tuple[str, ...], over: tuple[str, ...]) -> dict[str, TrainConfig]:
    """Every run by name: each entry of the list ("arch=transformer depth=2 heads=2 width=32") with every combination
    of the axes ("lr=0.01,0.1" and "seed=0,1")."""
    if base.steps is None:
        raise ConfigError("runs of a sweep end after the same number of steps; add --steps")
    listed = [[_setting(word) for word in entry.split()] for entry in each] or [[]]
    axes = []
    for axis in over:
        name, values = _setting(axis)
        axes.append([(name, value) for value in values.split(",")])
    found: dict[str, TrainConfig] = {}
    for entry, chosen in itertools.product(listed, itertools.product(*axes)):
        settings = [*entry, *chosen]
        name = "_".join(f"{field}={value}" for field, value in settings).replace(os.sep, "-") or "run"
        if name in found:
            raise ConfigError(f"the run {name} is asked for twice; say each once")
        found[name] = apply(base, {field: _value(value) for field, value in settings})
    return found


def _setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not value or name not in names():
        raise ConfigError(
            f"a setting is written name=value, an axis name=value,value, with the names of train's flags; got {word!r}"
        )
    return name, value


def _value(text: str) -> Any:
    """A number, true or false where it reads as one, else the text."""
    try:
        return jsons.loads(text)
    except ValueError:
        return text
