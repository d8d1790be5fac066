"""The walks of docs/architecture.md: every file once, no room left out, and each step can reach the next."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "architecture.md").read_text()
WALKS = re.split(r"^## ", TEXT, flags=re.MULTILINE)
LINK = re.compile(r"\]\(\.\./(src/keysift/[\w/]+\.py)\)")


@pytest.mark.parametrize("walk", WALKS[1:], ids=lambda walk: walk.splitlines()[0])
def test_each_file_once(walk: str) -> None:
    files = LINK.findall(walk)
    assert len(files) > 5
    assert len(files) == len(set(files)), sorted(f for f in set(files) if files.count(f) > 1)
    steps = [int(number) for number in re.findall(r"^(\d+)\. ", walk, flags=re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1))


def test_every_room_is_described() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "keysift").glob("*/__init__.py")}
    assert {Path(file).parent.name for file in LINK.findall(WALKS[0])} == rooms
