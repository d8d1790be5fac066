"""A Ray cluster (extra [ray]): connecting to it, and storage that all of its nodes see."""

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from keysift.core.errors import ConfigError, DataError, UnsupportedError

# Settings of this process that its tasks need: the cache of corpora, and modules with mechanisms.
_PASSED_ON = ("KEYSIFT_CACHE", "KEYSIFT_PLUGINS")


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """Connect to the cluster at `address`, $RAY_ADDRESS or on this machine, or start Ray. Yields the module `ray`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # reports nothing
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # leave CUDA_VISIBLE_DEVICES alone
    try:
        import ray
    except ImportError as error:
        raise UnsupportedError(f"--on ray needs the extra [ray] ({error}); pip install 'keysift[ray]'") from error
    address = address or os.environ.get("RAY_ADDRESS")
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": passed_on}, **options)
    except Exception as error:  # Ray raises a plain Exception if a node of its own does not start in time
        raise ConfigError(
            f"no Ray cluster answers at {address or 'this machine'} ({error}); start one with ray start --head"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_storage(ray: Any, folder: Path) -> None:
    """Refuse a folder that is not the same on every node: each must read what this process wrote, and write there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = version("keysift")
    folder.mkdir(parents=True, exist_ok=True)
    name = f".storage-{secrets.token_hex(8)}"
    (folder / name).write_text(name)
    visits = {}
    try:
        for node in ray.nodes():
            if node["Alive"]:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                visit = ray.remote(_visit).options(num_cpus=0, scheduling_strategy=there)
                visits[node["NodeManagerAddress"], node["NodeID"]] = visit.remote(str(folder.resolve()), name)
        for (address, node_id), visited in visits.items():
            reply = folder / f"{name}-{node_id}"
            try:
                there_is, problem = ray.get(visited)
            except ray.exceptions.RayError as error:
                there_is, problem = here, f"it cannot run keysift: {str(error).strip().splitlines()[-1]}"
            if not problem and not reply.is_file():
                problem = "what it writes there is not seen here"
            if problem:
                raise DataError(
                    f"{folder} is not usable on node {address} ({problem}); "
                    f"choose a folder on storage that all nodes share"
                )
            if there_is != here:
                raise DataError(f"node {address} has keysift {there_is}, here it is {here}; install one version")
    finally:
        for file in folder.glob(f"{name}*"):
            file.unlink()


def _visit(folder: str, name: str) -> tuple[str, str]:
    """On a node: the version of keysift, and what is wrong with the folder, if anything."""
    import ray

    problem = ""
    try:
        if (Path(folder) / name).read_text() != name:
            problem = f"{name} has other content there"
        (Path(folder) / f"{name}-{ray.get_runtime_context().get_node_id()}").write_text(name)
    except OSError as error:
        problem = error.strerror or str(error)
    return version("keysift"), problem
