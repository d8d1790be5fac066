"""CPU name and commit in records."""

from pathlib import Path

import pytest

from keysift.core import provenance


def test_cpu_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.cpu()
    assert len(provenance.commit().split(",")[0]) == 40
    assert provenance.commit(tmp_path) == "not run from a repository"
    monkeypatch.setattr(provenance, "CPUINFO", tmp_path / "none")
    assert provenance.cpu()
    monkeypatch.setenv("PATH", "")
    assert provenance.commit() == "not run from a repository"
