"""A config as a TOML file, with the names of the flags."""

import json
import tomllib
from pathlib import Path

from keysift.core.errors import ConfigError, DataError
from keysift.train.config import TrainConfig, flatten
from keysift.train.settings import apply


def read_toml(path: Path, init: Path | None = None) -> TrainConfig:
    """What the file says, of a run that starts from `init`, or from the model that the file names as init."""
    try:
        settings = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}); --config takes a TOML file, see recipes/") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number too long, nested without end
        raise ConfigError(f"{path} is not TOML ({error}); write lines like psi = 6") from error
    named = str(init) if init is not None else settings.get("init")
    return apply(_base(named), {**settings, "init": named})


def _base(init: str | None) -> TrainConfig:
    if init is None:
        return TrainConfig()
    from keysift.train.init import starting_from  # needs torch

    return starting_from(Path(init))


def to_toml(config: TrainConfig) -> str:
    """What `read_toml` reads back."""
    told = {name: value for name, value in flatten(config).items() if value is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in told.items())
