"""Free memory of the system and of control groups, checked before work starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from keysift.core import memory
from tests.refusals import refuses


def test_the_smaller_of_system_and_cgroup_limits_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory.cgroups, "ROOT", tmp_path / "fs")
    monkeypatch.setattr(memory.cgroups, "GROUPS", tmp_path / "groups")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 4000 kB\n")
    (tmp_path / "groups").write_text("0::/user/job\n")
    limit = tmp_path / "fs/user/memory.max"
    for folder, most, used in (("fs/user/job", "max", 7), ("fs/user", 5_000_000, 3_000_000), ("fs", 10**9, 0)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "memory.max").write_text(f"{most}\n")
        (tmp_path / folder / "memory.current").write_text(f"{used}\n")
    assert memory.available() == 2_000_000, "limits of parent groups apply"
    limit.write_text("max\n")
    assert memory.available() == 4000 * 1024
    memory.require(4000 * 1024, "a model", "wait")
    with refuses("a model needs about 4.1 MB, 4.1 MB are free; wait"):
        memory.require(4000 * 1024 + 1, "a model", "wait")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    assert memory.available() is not None, "falls back to sysconf"


def test_freed_memory_is_kept() -> None:
    """Growing tensors, each freed before the next: without the setting, every one is mapped anew."""
    code = """
import resource, sys, torch
from keysift.core.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else True
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(40):
    torch.ones(2**20 + number * 2**16)
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    # In processes of their own: the setting cannot be undone.
    found = [subprocess.check_output([sys.executable, "-c", code, mode], text=True) for mode in ("keep", "default")]
    (kept, few), (_, many) = (map(int, line.split()) for line in found)
    if not kept:
        pytest.skip("the C library has no mallopt")
    assert few < many / 4


def test_limits_of_cgroups_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory.cgroups, "ROOT", tmp_path / "fs")
    monkeypatch.setattr(memory.cgroups, "GROUPS", tmp_path / "groups")
    (tmp_path / "meminfo").write_text("MemAvailable: 4000 kB\n")
    (tmp_path / "groups").write_text("3:cpu:/c\n4:memory:/box\n")
    (tmp_path / "fs/memory/box").mkdir(parents=True)
    (tmp_path / "fs/memory/box/memory.limit_in_bytes").write_text("900\n")
    (tmp_path / "fs/memory/box/memory.usage_in_bytes").write_text("300\n")
    assert memory.available() == 600
