"""Memory is asked for before the work starts."""

from pathlib import Path

import pytest

from keysift.core import memory
from tests.refusals import refuses


def test_the_least_of_system_and_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("MEMINFO", "MemTotal: 9 kB\nMemAvailable: 4000 kB\n"),
        ("LIMIT", "5000000\n"),
        ("USED", "3000000\n"),
    ):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(memory, name, tmp_path / name)
    assert memory.available() == 2_000_000
    (tmp_path / "LIMIT").write_text("max\n")
    assert memory.available() == 4000 * 1024
    memory.need(4000 * 1024, "a thing", "wait")
    with refuses("a thing needs about 0.0 GB, 0.0 GB are free; wait"):
        memory.need(4000 * 1024 + 1, "a thing", "wait")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    assert memory.available() is not None, "asked of the system in another way"
