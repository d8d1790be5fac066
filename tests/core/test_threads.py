"""How many threads: cores by affinity, quotas of both kinds of control group, what others use, what the user says."""

import os
from pathlib import Path

import pytest

from keysift.core import threads
from keysift.core.threads import Busy, Choice, Machine, choose, quota, settle, share
from tests.refusals import refuses

IDLE = Machine(cores=8, quota=None, busy=0.2, load=0.5)
CROWDED = Machine(cores=2, quota=None, busy=1.1, load=3.2)


@pytest.mark.parametrize(
    ("machine", "free"),
    [
        (IDLE, 8),
        (CROWDED, 1),
        (Machine(cores=8, quota=None, busy=2.6, load=3.0), 5),
        (Machine(cores=8, quota=2.5, busy=0.0, load=0.0), 2),
        (Machine(cores=64, quota=4.0, busy=40.0, load=44.0), 4),
        (Machine(cores=8, quota=0.5, busy=0.0, load=0.0), 1),
        (Machine(cores=1, quota=None, busy=1.0, load=2.0), 1),
    ],
)
def test_free_cores(machine: Machine, free: int) -> None:
    assert machine.free == free
    assert choose(None, machine, {}) == Choice(free, "the machine", machine)


def test_the_flag_wins_then_the_environment_then_the_machine() -> None:
    assert choose(1, IDLE, {"OMP_NUM_THREADS": "3"}).threads == 1
    assert choose(None, IDLE, {"OMP_NUM_THREADS": "3,2"}) == Choice(3, "OMP_NUM_THREADS", IDLE)
    assert choose(None, IDLE, {"OMP_NUM_THREADS": "many"}).by == "the machine"
    for wrong in (0, 10**6):
        with refuses("--threads must lie in 1 to"):
            choose(wrong, IDLE, {})


def test_waiting_is_passive_unless_the_user_says_otherwise() -> None:
    for said in ({}, {"KMP_BLOCKTIME": "200"}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        environment = dict(said)
        settle(Choice(2, "the machine", IDLE), environment)
        assert environment["OMP_NUM_THREADS"] == "2"
        assert environment["OMP_WAIT_POLICY"] == said.get("OMP_WAIT_POLICY", "PASSIVE")
        assert environment.items() >= said.items()


def test_the_warning_has_the_figures() -> None:
    assert choose(None, IDLE, {}).warning() is None
    said = choose(None, CROWDED, {}).warning()
    assert said == (
        "others keep 1.1 of 2 cores busy (load 3.2): computing with 1 thread; --threads N decides otherwise"
    )
    said = choose(None, CROWDED, {"OMP_NUM_THREADS": "2"}).warning()
    assert said is not None
    assert said.endswith("2 threads by OMP_NUM_THREADS will wait for each other; try --threads 1")
    assert choose(None, CROWDED, {"OMP_NUM_THREADS": "1"}).warning() is None


def test_processes_share_the_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "examine", lambda: IDLE)
    assert [share(n, {"A": "b"})["OMP_NUM_THREADS"] for n in (1, 3, 20)] == ["8", "2", "1"]
    assert share(3, {"A": "b"})["A"] == "b"
    assert share(3, {"A": "b"})["OMP_WAIT_POLICY"] == "PASSIVE"
    assert share(3, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4", "the user's word is for each process"


def stat(*idle: int) -> str:
    rows = [f"cpu{core} 100 0 50 {ticks} 7 0 0 0 0 0" for core, ticks in enumerate(idle)]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8", *rows, "intr 12"]) + "\n"


def test_busy_is_what_was_neither_idle_nor_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own = iter([10.0, 12.0, 12.0]), iter([1.0, 2.0])
    monkeypatch.setattr(threads.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(threads.time, "process_time", lambda: next(own))
    file, second = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    file.write_text(stat(0, 0, 0, 0))
    found = Busy(file)
    # In two seconds: core 0 idle, core 1 half idle, core 2 busy and not ours; we ran for one second.
    file.write_text(stat(2 * second, second, 0, 0))
    assert found.cores({0, 1, 3}) == pytest.approx(3 - 1.5 - 0.5)


def test_without_proc_the_load_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.0, 0.0))
    assert Busy(tmp_path / "none").cores({0, 1}) == 1.5
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert Busy(tmp_path / "none").cores({0, 1}) == 2.0


def grant(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_quotas_of_version_2_are_those_of_every_group_above(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("0::/user/job\n")
    grant(tmp_path / "fs/user/job", cpu__max="max 100000\n")
    assert quota(tmp_path / "fs", groups) is None
    grant(tmp_path / "fs/user", cpu__max="150000 100000\n")
    grant(tmp_path / "fs", cpu__max="800000 100000\n")
    assert quota(tmp_path / "fs", groups) == 1.5
    assert quota(tmp_path / "fs", tmp_path / "missing") is None


def test_quotas_of_version_1(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("4:memory:/m\n3:cpu,cpuacct:/box\n")
    grant(tmp_path / "fs/cpu,cpuacct", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert quota(tmp_path / "fs", groups) is None
    grant(tmp_path / "fs/cpu,cpuacct/box", cpu__cfs_quota_us="250000\n", cpu__cfs_period_us="100000\n")
    assert quota(tmp_path / "fs", groups) == 2.5
