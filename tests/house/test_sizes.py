"""A file fits in the head: 400 lines at most, 600 for a kernel; a function fits on a screen."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LISTED = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
FILES = [
    ROOT / name
    for name in subprocess.run(LISTED, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
    if Path(name).suffix in (".py", ".js", ".css", ".html", ".cpp", ".h") and (ROOT / name).exists()
]
LONGER_FILES: dict[str, int] = {}  # may only shrink
LONGER_FUNCTIONS: dict[str, int] = {}  # may only shrink


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    limit = LONGER_FILES.get(name, 600 if path.suffix in (".cpp", ".h") else 400)
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".py"], ids=lambda path: str(path.relative_to(ROOT)))
def test_functions(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= LONGER_FUNCTIONS.get(f"{path.name}:{node.name}", 70), f"{node.name} has {length} lines"
