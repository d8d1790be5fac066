"""What a run writes about itself: what was decided when it began (train.json) and each session (environment.json)."""

import sys
import time
from typing import Any

import torch

from keysift.core.config import config, from_dict, to_dict
from keysift.runs import machine
from keysift.runs.directory import Run
from keysift.train.config import TrainConfig
from keysift.train.distributed import World


@config
class Facts:
    """What was decided when the run began."""

    config: TrainConfig
    stream: str
    """Hash of the tokens and their order."""
    parameters: int
    flops_per_token: float
    bytes_per_token: float


def read_facts(run: Run) -> Facts:
    return from_dict(Facts, run.told())


def describe_session(config: TrainConfig, world: World, strategy: str, peak: float) -> dict[str, Any]:
    return {
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "config": to_dict(config),
        "machine": to_dict(machine.examine()),
        "device": torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else "cpu",
        "processes": world.size,
        "strategy": strategy,
        "peak_flops": peak,
    }
