"""What a run writes about itself: what was decided when it began (train.json) and each session (environment.json)."""

import sys
import time
from typing import Any

import torch

from keysift.core.config import config, from_dict, to_dict
from keysift.core.errors import DataError
from keysift.runs import machine
from keysift.runs.directory import Run, write_json
from keysift.runs.earlier import upgraded
from keysift.runs.layout import TRAIN
from keysift.train.config import TrainConfig, flatten
from keysift.train.distributed import World
from keysift.train.init import Origin
from keysift.train.settings import apply


@config
class Facts:
    """What was decided when the run began."""

    config: TrainConfig
    stream: str
    """Hash of the tokens and their order."""
    parameters: int
    flops_per_token: float
    bytes_per_token: float | None
    """None where tokens are not text."""
    origin: Origin | None = None
    """The model whose weights the run began with."""


def read_facts(run: Run) -> Facts:
    """What train.json says; its config is written flat, by the names of the flags."""
    told = run.told()
    try:
        config = apply(TrainConfig(), upgraded(told["config"]))
        return from_dict(Facts, {**told, "config": to_dict(config)})
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{run.path / TRAIN} does not describe a run ({error!r}); start a new run") from error


def refuse_other_text(run: Run, stored: Facts, stream: str) -> None:
    if stored.stream != stream:
        raise DataError(
            f"{stored.config.data} is not what {run.path} was trained on: its token stream has another hash; "
            f"bring the old text back, or start a new run"
        )


def write_facts(run: Run, facts: Facts) -> None:
    write_json(run.path / TRAIN, {**to_dict(facts), "config": flatten(facts.config)})


def describe_session(config: TrainConfig, world: World, strategy: str, peak: float) -> dict[str, Any]:
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "config": flatten(config),
        "machine": to_dict(machine.examine()),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "processes": world.size,
        "strategy": strategy,
        "peak_flops": peak,
    }
