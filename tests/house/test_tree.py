"""Files of the repository: no leftovers, no registry addresses, no catch-all modules, a docstring in every module."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
]


@pytest.mark.parametrize("word", ["TODO" + ":", "FIX" + "ME", "XX" + "X", "pypi" + ".org", "registry." + "npmjs"])
def test_no_leftovers(word: str) -> None:
    assert [name for name in TEXT if word in (ROOT / name).read_text()] == []


def test_no_utils() -> None:
    assert [name for name in TRACKED if re.search(r"(^|/)(utils|helpers|misc|common)(\.py|/)", name)] == []


def test_every_module_has_a_docstring() -> None:
    for name in TRACKED:
        if name.startswith("src/") and name.endswith(".py"):
            assert (ROOT / name).read_text().startswith('"""'), f"{name} has no docstring"


MECHANISMS = ROOT / "src" / "keysift" / "mechanisms"
SHARED = {"spec", "rules", "parts"}


def imported(path: Path) -> set[str]:
    """Modules of mechanisms/ that a file imports, as `import a.b`, `from a import b` or `from a.b import c`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
    inside = {name.split(".")[2] for name in names if name.startswith("keysift.mechanisms.")}
    return {name for name in inside if (MECHANISMS / f"{name}.py").exists()}


@pytest.mark.parametrize("path", sorted(MECHANISMS.glob("*.py")), ids=lambda path: path.stem)
def test_mechanisms_do_not_import_each_other(path: Path) -> None:
    """Every file is checked, so a new mechanism needs no entry in a list."""
    if path.stem != "__init__":
        assert imported(path) <= SHARED


def test_every_dependency_is_pinned_in_constraints_only() -> None:
    """constraints.txt pins a version in the range of every dependency; pyproject.toml keeps ranges."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    pins = {name.lower(): version.split()[0] for name, version in (line.split("==") for line in lines)}
    for text in (*project["dependencies"], *extras["dev"], *extras["data"]):
        requirement = Requirement(text)
        if requirement.name == "keysift":  # an extra that includes another
            continue
        assert "==" not in text, f"{text}: pyproject.toml keeps ranges"
        assert pins[requirement.name.lower()] in requirement.specifier, f"{text}: the pin is not in the range"
