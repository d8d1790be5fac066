"""Which runs a sweep makes: a list of settings crossed with a grid."""

import itertools
import json
import os
from typing import Any

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig


def points(base: TrainConfig, each: tuple[str, ...], over: tuple[str, ...]) -> dict[str, TrainConfig]:
    """Every run by name: each entry of the list ("arch=transformer depth=2 heads=2 width=32") with every combination
    of the axes ("rate=0.01,0.1" and "seed=0,1")."""
    if base.steps is None:
        raise ConfigError("runs of a sweep end after the same number of steps; add --steps")
    known = to_dict(base)
    listed = [[_setting(word, known) for word in entry.split()] for entry in each] or [[]]
    axes = []
    for axis in over:
        name, values = _setting(axis, known)
        axes.append([(name, value) for value in values.split(",")])
    found: dict[str, TrainConfig] = {}
    for entry, chosen in itertools.product(listed, itertools.product(*axes)):
        settings = [*entry, *chosen]
        name = "_".join(f"{field}={value}" for field, value in settings).replace(os.sep, "-") or "run"
        if name in found:
            raise ConfigError(f"the run {name} is asked for twice; say each once")
        found[name] = from_dict(TrainConfig, {**known, **{field: _value(value) for field, value in settings}})
    return found


def _setting(word: str, known: dict[str, Any]) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not value or name not in known:
        raise ConfigError(
            f"a setting is written field=value, an axis field=value,value, with a field of train; got {word!r}"
        )
    return name, value


def _value(text: str) -> Any:
    """A number, true or false where it reads as one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
