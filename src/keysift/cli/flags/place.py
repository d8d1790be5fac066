"""Flags that say where work runs: on this machine, or as tasks of a Ray cluster."""

from typing import Literal

from keysift.core.config import config
from keysift.core.errors import ConfigError


@config
class Place:
    on: Literal["here", "ray"] = "here"
    """Where the work runs: in processes here, or as tasks of a Ray cluster (extra [ray])."""
    address: str | None = None
    """Address of the Ray cluster; by default $RAY_ADDRESS, the cluster running on this machine, or a new one."""

    def __post_init__(self) -> None:
        if self.address is not None and self.on != "ray":
            raise ConfigError(f"--address {self.address} is that of a Ray cluster; add --on ray")
