"""Where no compiler works, installation still does: the wheel holds Python only, says so, and runs."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.house.seeded import only_from

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a machine without a compiler gets it, built from a folder with a space in its name."""
    source = tmp_path_factory.mktemp("no compiler") / "keysift"
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    broken = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false"}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(source / "out"), "."]
    done = subprocess.run(build, check=False, capture_output=True, text=True, cwd=source, env=broken)
    assert done.returncode == 0, done.stderr
    (wheel,) = (source / "out").glob("*.whl")
    assert wheel.name.endswith("-none-any.whl"), wheel.name
    target = source / "installed"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(target)
    assert not list(target.rglob("*.so"))
    return target


def keysift(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "keysift", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=package.parent, env=only_from(package)
    )


@pytest.mark.slow
def test_a_broken_compiler_gives_a_wheel_that_runs_the_demo(installed: Path) -> None:
    done = keysift(installed, "demo", "--text", "--seconds", "0", "--out", "demo.html")
    assert done.returncode == 0, done.stderr
    assert "The same key in different company" in done.stdout
    assert "<html" in (installed.parent / "demo.html").read_text()


@pytest.mark.slow
def test_the_wheel_holds_the_sources_of_the_playground(installed: Path) -> None:
    done = keysift(installed, "play", "--no-open", "-o", "play.html")
    assert done.returncode == 0, done.stderr
    assert "function checkAll" in (installed.parent / "play.html").read_text()


@pytest.mark.slow
def test_the_doctor_names_what_is_missing(installed: Path) -> None:
    done = keysift(installed, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    compiled = next(b for b in json.loads(done.stdout)["backends"] if b["name"] == "screening_cpu")
    assert compiled["usable"] is False
    assert "compiler" in compiled["reason"]
