"""Many runs from one config: a grid over any fields, run by run, each in a process of its own and resumable."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError
from keysift.train.config import TrainConfig
from keysift.train.summary import Summary, summary


def grid(base: TrainConfig, axes: tuple[str, ...]) -> dict[str, TrainConfig]:
    """Every combination of axes like "rate=0.01,0.1" and "arch=multiscreen,transformer", by name."""
    if base.steps is None:
        raise ConfigError("runs of a sweep end after the same number of steps; add --steps")
    known = to_dict(base)
    choices = []
    for axis in axes:
        name, equals, values = axis.partition("=")
        if not equals or not values or name not in known:
            raise ConfigError(f"an axis is written field=value,value with a field of train, got {axis!r}")
        choices.append([(name, value) for value in values.split(",")])
    found = {}
    for chosen in itertools.product(*choices):
        fields = {name: _value(value) for name, value in chosen}
        checked = from_dict(TrainConfig, {**known, **fields})
        found["_".join(f"{name}={value}" for name, value in chosen) or "run"] = checked
    return found


def _value(text: str) -> Any:
    """A number, true or false where it reads as one, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def sweep(runs: dict[str, TrainConfig], out: Path, *, processes: int, told: Callable[[Summary], None]) -> list[Summary]:
    """Make or finish every run; one that diverged is a result and is left alone."""
    out.mkdir(parents=True, exist_ok=True)

    def one(item: tuple[str, TrainConfig]) -> Summary:
        name, config = item
        path = out / name
        if not _over(path):
            _train(config, path)
        found = summary(path)
        told(found)
        return found

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, runs.items()))


def _over(path: Path) -> bool:
    return (path / "train.json").is_file() and summary(path).state != "stopped"


def _train(config: TrainConfig, path: Path) -> None:
    command = [sys.executable, "-m", "keysift.cli.main", "train", "--quiet"]
    if (path / "train.json").is_file():
        command += ["--resume", str(path)]
    else:
        file = path.with_suffix(path.suffix + ".toml")
        file.write_text(to_toml(config))
        command += ["--config", str(file), "--out", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and not (path / "diagnosis.json").is_file():
        raise ConfigError(f"the run {path} failed: {done.stderr.strip()[-2000:]}; the others are kept, run again")


def to_toml(config: TrainConfig) -> str:
    """What `keysift train --config` reads back."""
    told = {name: value for name, value in to_dict(config).items() if value is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
