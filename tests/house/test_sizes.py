"""Limits on size: lines per file and per function, files per folder."""

import ast
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LIST_FILES = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
FILES = [
    ROOT / name
    for name in subprocess.run(LIST_FILES, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
    if Path(name).suffix in (".py", ".js", ".css", ".html", ".cpp", ".h") and (ROOT / name).exists()
]
LONGER_FILES: dict[str, int] = {}  # may only shrink
LONGER_FUNCTIONS: dict[str, int] = {}  # may only shrink
MAX_FILES_PER_FOLDER = 20


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in FILES}
    limits = {path: 600 if path.suffix in (".cpp", ".h") else 400 for path in FILES}
    assert not [
        f"{relative(path)} has {length} lines"
        for path, length in lengths.items()
        if length > LONGER_FILES.get(relative(path), limits[path])
    ]


def test_functions() -> None:
    long = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGER_FUNCTIONS.get(f"{path.name}:{node.name}", 70):
                    long.append(f"{relative(path)}: {node.name} has {length} lines")
    assert not long


def test_folders() -> None:
    """A package with many files at one level needs subpackages."""
    source = ROOT / "src" / "keysift"
    counts = Counter(path.parent.relative_to(source).as_posix() for path in FILES if path.is_relative_to(source))
    assert not {folder: count for folder, count in counts.items() if count > MAX_FILES_PER_FOLDER}
