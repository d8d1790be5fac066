"""The runs of a sweep: a list of settings crossed with a grid."""

import itertools
import os
from typing import Any

from keysift.core import safe_json
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig
from keysift.train.settings import apply, names


def plan_runs(base: TrainConfig, each: tuple[str, ...], over: tuple[str, ...]) -> dict[str, TrainConfig]:
    """Config of every run by name.

    each   entries of the list, such as "arch=transformer depth=2 heads=2 width=32"
    over   axes of the grid, such as "lr=0.01,0.1" and "seed=0,1"
    """
    if base.steps is None:
        raise ConfigError("all runs of a sweep train for the same number of steps; add --steps")
    listed = [[_setting(word) for word in entry.split()] for entry in each] or [[]]
    axes = []
    for axis in over:
        name, values = _setting(axis)
        axes.append([(name, value) for value in values.split(",")])
    runs: dict[str, TrainConfig] = {}
    for entry, chosen in itertools.product(listed, itertools.product(*axes)):
        settings = [*entry, *chosen]
        name = "_".join(f"{field}={value}" for field, value in settings).replace(os.sep, "-") or "run"
        if name in runs:
            raise ConfigError(f"the run {name} is listed twice; list each run once")
        runs[name] = apply(base, {field: _value(value) for field, value in settings})
    return runs


def _setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not value or name not in names():
        raise ConfigError(
            f"a setting is name=value and an axis name=value,value, with names of keysift train's flags; got {word!r}"
        )
    return name, value


def _value(text: str) -> Any:
    """The JSON value of a text, or the text itself if it is not JSON."""
    try:
        return safe_json.loads(text)
    except ValueError:
        return text
