"""The examples of docs/data.md run, from the first to the last."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEYSIFT_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
