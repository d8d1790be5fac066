"""The tree shows the product: no leftovers, no registry addresses, no process in it."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TRACKED = subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
    check=True,
    capture_output=True,
    text=True,
    cwd=ROOT,
).stdout.split()
TEXT = [
    name
    for name in TRACKED
    if Path(name).suffix in (".py", ".md", ".toml", ".txt", ".js", ".css", ".html", ".cpp", ".h", "")
    and name != "LICENSE"
    and not name.startswith("tests/runs/earlier/")  # recorded runs: data, some of it binary
]


@pytest.mark.parametrize("word", ["TODO" + ":", "FIX" + "ME", "XX" + "X", "pypi" + ".org", "registry." + "npmjs"])
def test_no_leftovers(word: str) -> None:
    assert [name for name in TEXT if word in (ROOT / name).read_text()] == []


def test_no_utils() -> None:
    assert [name for name in TRACKED if re.search(r"(^|/)(utils|helpers|misc|common)(\.py|/)", name)] == []


def test_every_source_file_says_what_it_is() -> None:
    for name in TRACKED:
        if name.startswith("src/") and name.endswith(".py"):
            assert (ROOT / name).read_text().startswith('"""'), f"{name} has no docstring"


MECHANISMS = ROOT / "src" / "keysift" / "mechanisms"
SHARED = {"spec", "rules", "parts"}


def imported(path: Path) -> set[str]:
    """Modules of this folder that a file imports, as `import a.b`, `from a import b` or `from a.b import c`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            found |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
    inside = {name.split(".")[2] for name in found if name.startswith("keysift.mechanisms.")}
    return {name for name in inside if (MECHANISMS / f"{name}.py").exists()}


@pytest.mark.parametrize("path", sorted(MECHANISMS.glob("*.py")), ids=lambda path: path.stem)
def test_mechanisms_do_not_know_each_other(path: Path) -> None:
    """Checked for every file that is there, so that a new one needs no entry in a list."""
    if path.stem != "__init__":
        assert imported(path) <= SHARED


def test_pins_satisfy_ranges() -> None:
    """Every dependency of the project is pinned for `make`, and nothing else narrows the ranges."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["dev"], *extras["data"]]
    pinned = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    for requirement in wanted:
        name = re.split(r"[<>=\[;]", requirement)[0].strip().lower()
        if name == "keysift":  # one extra that includes another
            continue
        assert name in pinned, f"{name} has no pin in constraints.txt"
        assert "==" not in requirement, f"{requirement}: pyproject.toml keeps ranges"
