"""The driver of the compiled library may run a part of its cases, but not without a variant of a kernel."""

import shutil
import subprocess
from pathlib import Path

import pytest

from keysift.kernels.cpu import library

SOURCES = Path(__file__).parent.parent.parent / "csrc"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++")
    if compiler is None or library.unavailable() is not None:
        pytest.skip("NO COMPILER OR NO COMPILED LIBRARY HERE")
    program = tmp_path_factory.mktemp("driver") / "driver"
    linked = [str(library.LIBRARY), f"-Wl,-rpath,{library.LIBRARY.parent}"]
    command = [compiler, "-std=c++17", "-I", str(SOURCES), str(SOURCES / "driver.cpp"), *linked, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run(driver: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([driver, *arguments], check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_the_part_that_make_aarch64_runs_has_every_variant(driver: Path) -> None:
    every = next(line for line in (SOURCES.parent / "Makefile").read_text().splitlines() if line.startswith("EVERY ?="))
    part = run(driver, every.split()[-1])
    assert part.returncode == 0, part.stderr
    assert part.stdout == f"{library.instruction_set()}: 997 cases\n"


@pytest.mark.slow
def test_a_part_without_some_variants_fails(driver: Path) -> None:
    part = run(driver, "8")  # sums has eight kinds
    assert part.returncode == 1
    assert part.stderr.startswith("one case in 8 leaves out 112 of 128 variants of sums; use 1, or a small number")
    assert run(driver, "0").returncode == run(driver, "11", "13").returncode == 2
