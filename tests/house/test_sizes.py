"""A file fits in the head: 400 lines at most, 600 for a kernel; a function fits on a screen."""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LISTED = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
FILES = [
    ROOT / name
    for name in subprocess.run(LISTED, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
    if Path(name).suffix in (".py", ".js", ".css", ".html", ".cpp", ".h") and (ROOT / name).exists()
]
LONGER_FILES: dict[str, int] = {}  # may only shrink
LONGER_FUNCTIONS: dict[str, int] = {}  # may only shrink


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in FILES}
    limits = {path: 600 if path.suffix in (".cpp", ".h") else 400 for path in FILES}
    assert not [
        f"{shown(path)} has {length} lines"
        for path, length in lengths.items()
        if length > LONGER_FILES.get(shown(path), limits[path])
    ]


def test_functions() -> None:
    long = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGER_FUNCTIONS.get(f"{path.name}:{node.name}", 70):
                    long.append(f"{shown(path)}: {node.name} has {length} lines")
    assert not long
