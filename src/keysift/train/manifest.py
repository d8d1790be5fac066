"""Files that describe a run: its manifest (train.json), and one entry per session (environment.json)."""

import sys
import time
from typing import Any

import torch

from keysift.core.config import config, from_dict, to_dict
from keysift.core.disk import write_json
from keysift.core.errors import DataError
from keysift.mechanisms.lookup import require_plugins
from keysift.runs import machine
from keysift.runs.directory import Run
from keysift.runs.layout import TRAIN
from keysift.train.config import TrainConfig, flatten
from keysift.train.distributed import World
from keysift.train.init import Origin
from keysift.train.settings import apply


@config
class RunManifest:
    """The facts fixed when a run starts."""

    config: TrainConfig
    stream: str
    """Hash of the tokens and their order."""
    parameters: int
    flops_per_token: float
    bytes_per_token: float | None
    """None if tokens are not text."""
    origin: Origin | None = None
    """The model whose weights the run started from."""
    plugins: tuple[str, ...] = ()
    """Modules given with --plugin, which registered mechanisms."""


def read_manifest(run: Run) -> RunManifest:
    """Read train.json. Its config is stored flat, under the names of the flags."""
    data = run.read_train_json()
    try:
        manifest = from_dict(RunManifest, {**data, "config": to_dict(apply(TrainConfig(), data["config"]))})
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{run.path / TRAIN} does not describe a run ({error!r}); start a new run") from error
    require_plugins(manifest.plugins, str(run.path))
    return manifest


def write_manifest(run: Run, manifest: RunManifest) -> None:
    write_json(run.path / TRAIN, {**to_dict(manifest), "config": flatten(manifest.config)})


def check_same_text(run: Run, manifest: RunManifest, stream: str) -> None:
    """Raise DataError if a resumed run would read another token stream than before."""
    if manifest.stream != stream:
        raise DataError(
            f"{manifest.config.data} is not the text that {run.path} was trained on: its token stream has another "
            f"hash; bring the old text back, or start a new run"
        )


def describe_session(config: TrainConfig, world: World, strategy: str, peak_flops: float) -> dict[str, Any]:
    """The entry of a session in environment.json."""
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "config": flatten(config),
        "machine": to_dict(machine.examine()),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "processes": world.size,
        "strategy": strategy,
        "peak_flops": peak_flops,
    }
