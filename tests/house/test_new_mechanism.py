"""A mechanism added as CONTRIBUTING.md says gets every property test, and a false promise fails one of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.changed_source import run_tests

ROOT = Path(__file__).parent.parent.parent
TOY = '''"""Toy: the square of the positive part, capped at one. Letters: B batch, H heads, T queries, S keys."""

from torch import Tensor

from keysift.mechanisms.rules import Pointwise
from keysift.mechanisms.spec import Mechanism, Promise


def weigh_key(x_BHTS: Tensor, distance_BHTS: Tensor) -> Tensor:
    return x_BHTS.clamp(0, 1).square()


TOY = Mechanism(
    name="toy",
    title="Toy",
    source="this test",
    page="toy",
    formula="w = min(max(x, 0), 1)^2",
    rule=Pointwise(weigh_key=weigh_key),
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
    """Run the tests of mechanisms and kernels on a copy of the repository with the mechanism in `text`."""
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
    (tmp_path / "docs" / "mechanisms" / "toy.md").write_text("# Toy\n\n`toy` squares the positive part.\n")
    tests = ["tests/mechanisms", "tests/kernels", "tests/house/test_documents.py"]
    return run_tests(tmp_path / "src", tmp_path, "-k", "toy or has_a_page", *tests)


@pytest.mark.slow
def test_toy_gets_all_property_tests(tmp_path: Path) -> None:
    process = add_toy(tmp_path, TOY)
    assert process.returncode == 0, process.stdout[-3000:]
    assert int(process.stdout.split(" passed")[0].split()[-1]) >= 30 + 8, "15 promises in two dtypes, gradients, attend"


@pytest.mark.slow
def test_a_false_promise_fails(tmp_path: Path) -> None:
    process = add_toy(tmp_path, TOY.replace("        Promise.SHIFT_INVARIANT,\n", ""))
    assert process.returncode == 1
    assert "toy-SHIFT_INVARIANT" in process.stdout
