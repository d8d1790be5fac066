"""What `--on ray` refuses, with a stand-in for Ray. tests/scale runs a real cluster."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from keysift.cli.flags.place import Place
from keysift.cli.verbs import data, sweep
from keysift.data.cluster import check_storage, connect
from keysift.data.ray_workers import encode_chunks
from keysift.data.tokenizers.bytes import Bytes
from keysift.sweep.on_ray import RayLauncher
from keysift.train.config import TrainConfig
from tests.refusals import refuses


class RayError(Exception):
    pass


class FakeRay:
    """Runs tasks at once. `replies` replaces the results of tasks by name."""

    exceptions = SimpleNamespace(RayError=RayError, TaskCancelledError=RayError)

    def __init__(self, **replies: Any) -> None:
        self.replies = replies
        self.resources = {"CPU": 2.0, "memory": 2.0**40}

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": "n", "NodeManagerAddress": "10.0.0.7", "Resources": self.resources}]

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    def remote(self, function: Any) -> Any:
        reply = self.replies[function.__name__]
        task = SimpleNamespace(remote=lambda *arguments: reply)
        task.options = lambda **options: task
        return task

    def put(self, value: Any) -> Any:
        return value

    def get(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    def cancel(self, task: Any, force: bool) -> None:
        pass


@pytest.fixture
def _strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("ray.util.scheduling_strategies")
    module.NodeAffinitySchedulingStrategy = lambda node, soft: node  # type: ignore[attr-defined]
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", module)


@pytest.mark.usefixtures("_strategies")
@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            ("0.1.0", "No such file or directory"),
            "not usable on node 10.0.0.7 .No such file.*storage that all nodes share",
        ),
        (("0.1.0", ""), "what it writes there is not seen here"),
        (RayError("a\nModuleNotFoundError: keysift"), "it cannot run keysift: ModuleNotFoundError"),
    ],
)
def test_storage_must_be_the_same_on_all_nodes(reply: Any, message: str, tmp_path: Path) -> None:
    with refuses(message):
        check_storage(FakeRay(_visit=reply), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_strategies")
def test_nodes_must_have_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "x")
    (tmp_path / ".storage-x-n").write_text("")
    with refuses("node 10.0.0.7 has keysift 9.9, here it is .*; install one version"):
        check_storage(FakeRay(_visit=("9.9", "")), tmp_path)


def test_ray_must_be_installed_and_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with refuses("needs the extra \\[ray\\]"), connect(None):
        pass

    for kind in (ConnectionError, Exception):  # a node that starts too slowly is a plain Exception

        def init(kind: type[Exception] = kind, **options: Any) -> None:
            raise kind("nobody there")

        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
        with refuses("no Ray cluster answers at 10.0.0.1:1 .nobody there.*ray start --head"), connect("10.0.0.1:1"):
            pass


def test_a_missing_source_is_refused_before_ray_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    build = data.Build(source=str(tmp_path / "nowhere"), out=tmp_path / "corpus", place=Place(on="ray"))
    with refuses("nowhere"):
        data.run(data.Args(do=build))


@pytest.mark.usefixtures("_strategies")
def test_a_run_that_fits_no_node_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keysift.sweep.on_ray.check_storage", lambda ray, folder: None)
    with refuses("cores must be at least 1, got 0"):
        RayLauncher(FakeRay(), tmp_path, cores=0)
    launcher = RayLauncher(FakeRay(), tmp_path, cores=3)
    with refuses("a run needs 3 cores, 0 GPUs and .* no node has them .the largest has 2 cores"):
        launcher.start(TrainConfig(data="recall", steps=1), tmp_path / "run", {})


def test_a_failed_task_is_reported() -> None:
    with refuses("tokenizing with bytes on Ray failed: lost; try --on here"):
        list(encode_chunks(FakeRay(_encode=RayError("lost")), Bytes(), [["text"]]))


def test_flags_that_exclude_each_other(tmp_path: Path) -> None:
    with refuses("--address a is that of a Ray cluster; add --on ray"):
        Place(address="a")
    place = Place(on="ray")
    with refuses("--processes is for runs here"):
        sweep.run(sweep.Args(out=tmp_path, over=("seed=0",), processes=2, place=place))
    with refuses("--workers is for processes here"):
        data.run(data.Args(do=data.Build(source="stdlib", out=tmp_path, workers=2, place=place)))
