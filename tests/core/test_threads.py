"""Number of threads: cores by affinity, cgroup quotas, load of other processes, flags and environment."""

import os
from pathlib import Path

import pytest

from keysift.core import threads
from keysift.core.threads import BusyCores, Choice, Machine, apply, child_environment, choose, quota
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
    for count in (0, 10**6):
        with refuses("--threads must lie in 1 to"):
            choose(count, IDLE, {})


def test_the_wait_policy_is_passive_unless_set_by_the_user() -> None:
    for user_settings in ({}, {"KMP_BLOCKTIME": "200"}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        environment = dict(user_settings)
        apply(Choice(2, "the machine", IDLE), environment)
        assert environment["OMP_NUM_THREADS"] == "2"
        assert environment["OMP_WAIT_POLICY"] == user_settings.get("OMP_WAIT_POLICY", "PASSIVE")
        assert ("GOMP_SPINCOUNT" in environment) == ("OMP_WAIT_POLICY" not in user_settings), "a short spin, then sleep"
        assert environment.items() >= user_settings.items()


def test_the_warning_states_load_and_threads() -> None:
    assert choose(None, IDLE, {}).warning() is None
    warning = choose(None, CROWDED, {}).warning()
    assert warning == ("other processes keep 1.1 of 2 cores busy (load 3.2): using 1 thread; --threads N overrides it")
    warning = choose(None, CROWDED, {"OMP_NUM_THREADS": "2"}).warning()
    assert warning is not None
    assert warning.endswith("2 threads set by OMP_NUM_THREADS will wait for each other; try --threads 1")
    assert choose(None, CROWDED, {"OMP_NUM_THREADS": "1"}).warning() is None


def test_processes_share_the_free_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "examine", lambda: IDLE)
    assert [child_environment(n, {"A": "b"})["OMP_NUM_THREADS"] for n in (1, 3, 20)] == ["8", "2", "1"]
    assert child_environment(3, {"A": "b"})["A"] == "b"
    assert child_environment(3, {"A": "b"})["OMP_WAIT_POLICY"] == "PASSIVE"
    assert child_environment(3, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4", (
        "a value set by the user applies to each process"
    )


def proc_stat(*idle: int) -> str:
    """Contents of /proc/stat with these idle ticks per core."""
    rows = [f"cpu{core} 100 0 50 {ticks} 7 0 0 0 0 0" for core, ticks in enumerate(idle)]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8", *rows, "intr 12"]) + "\n"


def test_busy_cores_exclude_idle_time_and_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, process_times = iter([10.0, 12.0, 12.0]), iter([1.0, 2.0])
    monkeypatch.setattr(threads.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(threads.time, "process_time", lambda: next(process_times))
    file, ticks_per_second = tmp_path / "stat", os.sysconf("SC_CLK_TCK")
    file.write_text(proc_stat(0, 0, 0, 0))
    busy = BusyCores(file)
    # Two seconds: core 0 idle, core 1 half idle, core 3 busy, core 2 not available; this process used one second.
    file.write_text(proc_stat(2 * ticks_per_second, ticks_per_second, 0, 0))
    assert busy.count({0, 1, 3}) == pytest.approx(3 - 1.5 - 0.5)


def test_without_proc_the_load_average_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 0.0, 0.0))
    assert BusyCores(tmp_path / "none").count({0, 1}) == 1.5
    monkeypatch.setattr(os, "getloadavg", lambda: (9.0, 0.0, 0.0))
    assert BusyCores(tmp_path / "none").count({0, 1}) == 2.0


def write_cgroup_files(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_quotas_of_cgroups_version_2_include_parent_groups(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("0::/user/job\n")
    write_cgroup_files(tmp_path / "fs/user/job", cpu__max="max 100000\n")
    assert quota(tmp_path / "fs", groups) is None
    write_cgroup_files(tmp_path / "fs/user", cpu__max="150000 100000\n")
    write_cgroup_files(tmp_path / "fs", cpu__max="800000 100000\n")
    assert quota(tmp_path / "fs", groups) == 1.5
    assert quota(tmp_path / "fs", tmp_path / "missing") is None


def test_quotas_of_cgroups_version_1(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    groups.write_text("4:memory:/m\n3:cpu,cpuacct:/box\n")
    write_cgroup_files(tmp_path / "fs/cpu,cpuacct", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    assert quota(tmp_path / "fs", groups) is None
    write_cgroup_files(tmp_path / "fs/cpu,cpuacct/box", cpu__cfs_quota_us="250000\n", cpu__cfs_period_us="100000\n")
    assert quota(tmp_path / "fs", groups) == 2.5
