"""Sweeps, corpora and retrieval on a real Ray cluster: a lost node loses no work, and the results are those of here."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keysift.cli.main import _main
from keysift.data import cluster as ray_cluster
from keysift.data import ray_workers, shards
from keysift.data.corpus import VERIFIED
from keysift.data.shards import build
from keysift.runs import layout
from keysift.runs.metrics import last
from keysift.sweep.drive import sweep
from keysift.sweep.on_ray import RayLauncher
from keysift.sweep.plan import plan_runs
from keysift.train.config import TrainConfig
from tests.refusals import refuses
from tests.sweep.test_sweep import start
from tests.train.in_process import losses
from tests.train.processes import finish

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of Ray are not ours
ROOT = Path(__file__).parent.parent.parent
SEEDS = ("seed=0,1,2",)


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 240
    while last(run / layout.METRICS).get("step", 0) < step:
        assert time.monotonic() < deadline, f"{run.name} did not reach step {step}"
        time.sleep(0.02)


def content(run: Path) -> dict[str, Any]:
    """What a run leaves that must not depend on where it ran."""
    newest = layout.newest_checkpoint(run)
    assert newest is not None
    manifest = json.loads((run / layout.TRAIN).read_text())
    return {
        "losses": losses(run),
        "step": newest.name,
        "weights": (newest / "model.safetensors").read_bytes(),
        "config": manifest["config"],
        "stream": manifest["stream"],
    }


def test_a_sweep_that_loses_a_node_gives_the_records_of_a_local_one(
    tiny: TrainConfig, tmp_path: Path, cluster: Any, nodes: list[Any]
) -> None:
    runs = plan_runs(replace(tiny, steps=600, save_every=20, sample_tokens=0), (), SEEDS)
    out = tmp_path / "ray"

    def lose_a_node() -> None:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            active = [run for run in runs if last(out / run / layout.METRICS).get("step", 0) > 25]
            if len(active) >= 2:
                break
            time.sleep(0.02)
        cluster.remove_node(nodes[0], allow_graceful=False)
        cluster.add_node(num_cpus=1)

    killer = threading.Thread(target=lose_a_node)
    killer.start()
    with ray_cluster.connect(cluster.address) as ray:
        outcomes = sweep(runs, out, launcher=RayLauncher(ray, out, cores=1), show=False)
    killer.join()
    failed = [(outcome.name, outcome.state, outcome.error) for outcome in outcomes if outcome.state != "finished"]
    assert not failed
    sessions = {run: len(json.loads((out / run / layout.ENVIRONMENT).read_text())) for run in runs}
    assert max(sessions.values()) > 1, "the run of the lost node resumed"
    sweep(runs, tmp_path / "here", processes=2, show=False)
    for run in runs:
        assert content(out / run) == content(tmp_path / "here" / run), run
    assert not list(out.glob(".storage*"))


def test_ctrl_c_saves_and_the_same_command_resumes(
    tiny: TrainConfig, tmp_path: Path, cluster: Any, nodes: list[Any]
) -> None:
    config, out = replace(tiny, steps=800), tmp_path / "sweep"
    process = start(config, out, "--on", "ray", "--address", cluster.address)
    wait_for_step(out / "seed=0", 7)
    os.killpg(process.pid, signal.SIGINT)
    finish(process)
    states = {outcome["run"]: outcome["state"] for outcome in json.loads((out / "sweep.json").read_text())}
    assert states["seed=0"] == "stopped", states
    assert layout.saved_step(out / "seed=0") == len(losses(out / "seed=0")) < 800, "the active run saves its last step"
    assert states["seed=2"] == "not started"
    before = losses(out / "seed=0")
    finish(start(config, out, "--on", "ray", "--address", cluster.address), timeout=900)  # the nodes have one core each
    assert losses(out / "seed=0")[: len(before)] == before
    assert [layout.saved_step(out / f"seed={seed}") for seed in range(3)] == [800] * 3


def test_a_corpus_built_while_a_node_is_lost_is_the_local_one(
    tmp_path: Path, cluster: Any, nodes: list[Any], corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "_CHUNK", 500)
    with ray_cluster.connect(cluster.address) as ray:

        def encode(tokenizer: Any, chunks: Any) -> Iterator[Any]:
            for number, ids in enumerate(ray_workers.encode_chunks(ray, tokenizer, chunks)):
                if number == 3:
                    cluster.remove_node(nodes[0], allow_graceful=False)
                yield ids

        build(str(corpus), "bpe:300", tmp_path / "ray", encode=encode, show=False)
    build(str(corpus), "bpe:300", tmp_path / "here", workers=1, show=False)
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "ray").iterdir())
    for name in set(names) - {VERIFIED}:  # it stores times of files
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "ray" / name).read_bytes(), name


def test_commands_take_a_cluster(tmp_path: Path, cluster: Any, nodes: list[Any], corpus: Path) -> None:
    place = ["--on", "ray", "--address", cluster.address]
    assert _main(["data", "build", str(corpus), "--out", str(tmp_path / "corpus"), *place]) == 0
    model = str(ROOT / "checkpoints" / "one-hop-multiscreen")
    flags = ["--task", "recall", "--lengths", "64", "128", "--depths", "0.5", "--instances", "4", "--expand-windows"]
    shutil.copytree(model, tmp_path / "model", symlinks=True)
    cells = {}
    for name, where in {"here": [], "ray": place}.items():
        out = tmp_path / name
        assert _main(["eval", "retrieval", str(tmp_path / "model"), *flags, "--out", str(out), *where]) == 0
        cells[name] = json.loads((out / "recall.json").read_text())["cells"]
    assert cells["ray"] == cells["here"]
    assert len(cells["ray"]) == 4


def test_storage_that_a_node_does_not_see_is_refused(tmp_path: Path, cluster: Any, nodes: list[Any]) -> None:
    """A third node has an empty file system in the place of the folder."""
    out = tmp_path / "out"
    out.mkdir()
    ray = Path(sys.executable).parent / "ray"
    command = f"mount -t tmpfs none {out} && exec {ray} start --address={cluster.address} --num-cpus=1 --block"
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("NO PRIVATE MOUNTS HERE: unshare --mount needs root")
    process = subprocess.Popen(["unshare", "--mount", "sh", "-c", command], start_new_session=True)
    try:
        with ray_cluster.connect(cluster.address) as module:
            deadline = time.monotonic() + 120
            while sum(node["Alive"] for node in module.nodes()) < 4:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            with refuses("out is not usable on node .*No such file.*storage that all nodes share"):
                ray_cluster.check_storage(module, out)
        assert not list(out.iterdir())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
