"""Seeded faults: change one piece of the source, run tests against it, and demand that they fail.

A fault gives a piece of code (`right`) and its replacement (`wrong`). The piece is found by comparing syntax trees, so
formatting, comments and line breaks do not matter. An import hook gives the test process, and every Python process it
starts, the changed module.
"""

import ast
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.forked import Outcome, run_pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "keysift"
# Python runs `sitecustomize` at start-up if it is on the path, so processes that a test starts get the hook, too.
HOOK = """
import sys
from importlib.machinery import PathFinder, SourceFileLoader


class Loader(SourceFileLoader):
    def get_code(self, name):
        open({marker!r}, "a").close()
        with open({source!r}) as file:
            return compile(file.read(), self.path, "exec")


class Finder:
    @staticmethod
    def find_spec(name, path, target=None):
        if name != {module!r}:
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, Finder)
"""


class Fault(NamedTuple):
    """A piece of the source, its replacement, and the tests that must fail because of it."""

    name: str
    file: str
    right: str  # an expression, or statements; must occur exactly once
    wrong: str  # empty: the statements are removed
    tests: str
    only: str = ""  # expression for pytest -k
    inside: str = ""  # function or class that contains the piece, if it occurs more than once in the file
    kernel: bool = False  # the tests need the compiled kernel


def seed(fault: Fault) -> str:
    """Source of `fault.file` with the fault in it. Raises AssertionError unless `right` occurs exactly once."""
    tree = ast.parse((SOURCE / fault.file).read_text())
    right, wrong = (ast.parse(textwrap.dedent(text)).body for text in (fault.right, fault.wrong or "pass"))
    expression = all(len(piece) == 1 and isinstance(piece[0], ast.Expr) for piece in (right, wrong))
    old: list[ast.AST] = [getattr(node, "value") if expression else node for node in right]  # noqa: B009
    new: list[ast.AST] = [getattr(node, "value") if expression else node for node in wrong]  # noqa: B009
    places = [place for scope in _scopes(tree, fault.inside) for place in _places(scope, old)]
    assert len(places) == 1, (
        f"fault {fault.name!r}: expected this code once in {fault.file}"
        f"{f' inside {fault.inside}' * bool(fault.inside)}, found it {len(places)} times; "
        f"update the fault in tests/house, or set `inside`:\n{fault.right}"
    )
    parent, field, first = places[0]
    if first is None:
        setattr(parent, field, new[0])
    else:
        getattr(parent, field)[first : first + len(old)] = new
    return ast.unparse(tree)


def _scopes(tree: ast.Module, name: str) -> list[ast.AST]:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in ast.walk(tree) if isinstance(node, definitions) and node.name == name] if name else [tree]


def _places(scope: ast.AST, nodes: list[ast.AST]) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of every piece of `scope` that equals `nodes`."""
    expected = [ast.dump(node) for node in nodes]
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                for first in range(len(value) - len(nodes) + 1):
                    if [ast.dump(node) for node in value[first : first + len(nodes)] if _node(node)] == expected:
                        yield parent, field, first
            elif _node(value) and [ast.dump(value)] == expected:
                yield parent, field, None


def _node(value: Any) -> bool:
    return isinstance(value, ast.AST)


def run_with(fault: Fault) -> tuple[Outcome, bool]:
    """Run the tests of `fault` against the source that contains it. Also returns whether they imported the file."""
    with tempfile.TemporaryDirectory() as folder:
        changed_module, marker = Path(folder, "changed.py"), Path(folder, "seen")
        changed_module.write_text(seed(fault))
        module = "keysift." + fault.file.removesuffix(".py").replace("/", ".")
        hook = HOOK.format(module=module, source=str(changed_module), marker=str(marker))
        Path(folder, "sitecustomize.py").write_text(hook)
        only = ["-k", fault.only] if fault.only else []
        return run_pytest("-x", fault.tests, *only, startup=Path(folder)), marker.exists()


def is_caught(fault: Fault) -> None:
    """Assert that the tests of `fault` fail once the source contains it."""
    outcome, imported = run_with(fault)
    assert outcome.code != 5, f"fault {fault.name!r}: no test of {fault.tests} matches -k {fault.only!r}"
    assert imported, f"fault {fault.name!r}: {fault.tests} does not import {fault.file}\n{outcome.output[-2000:]}"
    assert outcome.code == 1, f"fault {fault.name!r}: pytest returned {outcome.code}\n{outcome.output[-2000:]}"
    assert "failed" in outcome.output, outcome.output[-2000:]
