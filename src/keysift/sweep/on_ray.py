"""Runs of a sweep and cells of a retrieval grid as Ray tasks (extra [ray]).

A run trains inside its task, so it ends with its worker. If a node is lost, Ray starts the task elsewhere, and the run
resumes from its newest checkpoint, as after kill -9.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from keysift.core.config import from_dict, to_dict
from keysift.core.errors import ConfigError
from keysift.core.number import data_size
from keysift.data.cluster import check_storage
from keysift.nn.inference import Inference
from keysift.records.evaluation import Cell
from keysift.runs.layout import is_locked, is_run_directory, saved_step
from keysift.sweep import child
from keysift.sweep.launch import Process, config_file, log_file
from keysift.train.config import TrainConfig
from keysift.train.preflight import memory_of_run

_RETRIES = 20  # nodes that a run may lose; it resumes from its newest checkpoint each time
_LOCK_SECONDS = 60.0


class RayLauncher:
    """Starts every run as a Ray task at once; Ray runs as many as the cluster has resources for."""

    slots = sys.maxsize

    def __init__(self, ray: Any, out: Path, *, cores: int) -> None:
        if cores < 1:
            raise ConfigError(f"cores must be at least 1, got {cores}")
        check_storage(ray, out)
        self._ray, self._cores = ray, cores

    def start(self, config: TrainConfig, path: Path, changes: dict[str, Any]) -> Process:
        needed = self._resources(config)
        task = self._ray.remote(max_calls=1, max_retries=_RETRIES, **needed)(_train_run)  # a new process for each run
        path = path.resolve()
        return _Task(self._ray, task.remote(str(path), json.dumps(changes), os.getcwd()), log_file(path))

    def _resources(self, config: TrainConfig) -> dict[str, int]:
        """Cores, GPUs and memory of a run. Raises if no node has them, because its task would wait forever."""
        gpus = config.device.startswith("cuda") or (
            config.device == "auto" and self._ray.cluster_resources().get("GPU", 0) > 0
        )
        needed = {"num_cpus": self._cores, "num_gpus": int(gpus), "memory": _memory_of_run(config)}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
        if not any(all(node.get(names[key], 0) >= value for key, value in needed.items()) for node in nodes):
            most = max((node.get("CPU", 0), node.get("memory", 0)) for node in nodes)
            raise ConfigError(
                f"a run needs {self._cores} cores, {int(gpus)} GPUs and {data_size(needed['memory'])} of memory, "
                f"and no node has them (the largest has {most[0]:.0f} cores and {data_size(most[1])}); "
                f"lower --cores or --micro-tokens, or add a larger node"
            )
        return needed


@cache
def _memory_of_run(config: TrainConfig) -> int:
    return memory_of_run(config)


@dataclass
class _Task:
    """A run on Ray, with the interface of a process."""

    ray: Any
    task: Any
    log: Path

    def poll(self) -> int | None:
        if not self.ray.wait([self.task], timeout=0)[0]:
            return None
        try:
            code: int = self.ray.get(self.task)
        except self.ray.exceptions.TaskCancelledError:
            return 130
        except self.ray.exceptions.RayError as error:
            self.log.write_text(f"{error}\n")
            return 1
        return code

    def terminate(self) -> None:
        """Interrupt the task: a run saves and exits, a waiting run does not start."""
        self.ray.cancel(self.task, force=False)

    def kill(self) -> None:
        self.ray.cancel(self.task, force=True)


def _train_run(run: str, changes: str, folder: str) -> int:
    """In a task: start or resume the run; returns the exit code. Relative paths start at the folder of the sweep."""
    path = Path(run)
    with log_file(path).open("w") as log, redirect_stdout(log), redirect_stderr(log):
        try:
            os.chdir(folder)
            deadline = time.monotonic() + _LOCK_SECONDS
            while is_locked(path) and time.monotonic() < deadline:
                time.sleep(0.2)  # the process of a lost node is about to end
            if is_run_directory(path) and saved_step(path) >= json.loads(changes)["steps"]:
                return 0  # it ended, but its node was lost before it could say so
            return child.main(str(config_file(path)), run, changes)
        except Exception:
            traceback.print_exc()
            return 1


def measure_cells(
    ray: Any,
    model: str,
    task: str,
    grid: Sequence[tuple[int, float, str, Inference]],
    on_cell: Callable[[Cell], None],
    *,
    instances: int,
    seed: int,
) -> None:
    """Measure the cells of a retrieval grid as Ray tasks, and call `on_cell` with each as it ends."""
    if Path(model).exists():
        check_storage(ray, Path(model))
        model = str(Path(model).resolve())
    measure = ray.remote(_measure_cell).options(num_cpus=1, max_retries=_RETRIES)
    waiting = [
        measure.remote(model, task, length, depth, setting, to_dict(inference), instances, seed)
        for length, depth, setting, inference in grid
    ]
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1)
            on_cell(from_dict(Cell, ray.get(ready[0])))
    finally:
        for unfinished in waiting:
            ray.cancel(unfinished, force=True)


def _measure_cell(
    model: str,
    task: str,
    length: int,
    depth: float,
    setting: str,
    inference: dict[str, Any],
    instances: int,
    seed: int,
) -> dict[str, Any]:
    from keysift.evaluate.measured_model import open_measured_model
    from keysift.evaluate.retrieval import measure_retrieval

    record = measure_retrieval(
        open_measured_model(model),
        task,
        lengths=[length],
        depths=[depth],
        settings={setting: from_dict(Inference, inference)},
        instances=instances,
        seed=seed,
    )
    cell: dict[str, Any] = to_dict(record.cells[0])
    return cell
