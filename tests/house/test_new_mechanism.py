"""One file, one line, one page: a toy mechanism added so gets every property test, and a lie about it goes red."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.seeded import run_tests

ROOT = Path(__file__).parent.parent.parent
TOY = '''"""Toy: the square of what is positive, capped at one. Letters: B batch, H heads, T queries, S keys."""

from torch import Tensor

from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Promise


def judge(x_BHTS: Tensor, distance_BHTS: Tensor) -> Tensor:
    return x_BHTS.clamp(0, 1).square()


TOY = Mechanism(
    name="toy",
    title="Toy",
    source="this test",
    page="toy",
    formula="w = min(max(x, 0), 1)^2",
    rule=Pointwise(judge=judge),
    holds=frozenset(Promise)
    - {
        Promise.SUMS_TO_ONE,
        Promise.CONVEX_HULL,
        Promise.HULL_WITH_ZERO,
        Promise.SHIFT_INVARIANT,
        Promise.SCALE_INVARIANT,
    },
)
'''


def add_toy(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    for folder in ("src", "tests", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "README.md", "Makefile"):
        shutil.copy(ROOT / file, tmp_path / file)
    mechanisms = tmp_path / "src" / "keysift" / "mechanisms"
    (mechanisms / "toy.py").write_text(text)
    registry = mechanisms / "__init__.py"
    line = "from keysift.mechanisms.toy import TOY\nregister(TOY)\n"
    assert "\nTESTED = " in registry.read_text()
    registry.write_text(registry.read_text().replace("\nTESTED = ", f"\n{line}TESTED = "))
    (tmp_path / "docs" / "mechanisms" / "toy.md").write_text("# Toy\n\n`toy` squares what is positive.\n")
    tests = ["tests/mechanisms", "tests/kernels", "tests/house/test_documents.py"]
    return run_tests(tmp_path / "src", tmp_path, "-k", "toy or has_a_page", *tests)


@pytest.mark.slow
def test_toy_gets_all_property_tests(tmp_path: Path) -> None:
    done = add_toy(tmp_path, TOY)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 30 + 8, "15 promises in two types, gradients, the door"


@pytest.mark.slow
def test_a_lie_about_it_goes_red(tmp_path: Path) -> None:
    done = add_toy(tmp_path, TOY.replace("        Promise.SHIFT_INVARIANT,\n", ""))
    assert done.returncode == 1
    assert "toy-SHIFT_INVARIANT" in done.stdout
