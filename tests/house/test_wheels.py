"""Without a working compiler the wheel contains Python only, and the commands run."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.house.changed_source import environment_for

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package built without a compiler, from a folder with a space in its name."""
    source = tmp_path_factory.mktemp("no compiler") / "keysift"
    names = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    broken = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(source / "out"), "."]
    process = subprocess.run(build, check=False, capture_output=True, text=True, cwd=source, env=broken)
    assert process.returncode == 0, process.stderr
    (wheel,) = (source / "out").glob("*.whl")
    assert wheel.name.endswith("-none-any.whl"), wheel.name
    target = source / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    assert not list(target.rglob("*.so"))
    return target


def keysift(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "keysift", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=package.parent, env=environment_for(package)
    )


@pytest.mark.slow
def test_the_demo_runs(installed: Path) -> None:
    process = keysift(installed, "demo", "--text", "--seconds", "0", "--out", "demo.html")
    assert process.returncode == 0, process.stderr
    assert "The same key with different competitors" in process.stdout
    assert "<html" in (installed.parent / "demo.html").read_text()


@pytest.mark.slow
def test_the_wheel_contains_the_playground(installed: Path) -> None:
    process = keysift(installed, "play", "--no-open", "-o", "play.html")
    assert process.returncode == 0, process.stderr
    assert "function checkAll" in (installed.parent / "play.html").read_text()


@pytest.mark.slow
def test_doctor_names_the_missing_compiler(installed: Path) -> None:
    process = keysift(installed, "doctor", "--json")
    assert process.returncode == 0, process.stderr
    compiled = next(b for b in json.loads(process.stdout)["backends"] if b["name"] == "screening_cpu")
    assert compiled["usable"] is False
    assert "compiler" in compiled["reason"]
