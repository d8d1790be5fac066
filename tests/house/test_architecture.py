"""docs/architecture.md: it lists every package, and its paths follow the import graph in one direction."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grimp
import pytest

ROOT = Path(__file__).parent.parent.parent
INTRODUCTION, *PATHS = re.split(r"^## ", (ROOT / "docs" / "architecture.md").read_text(), flags=re.MULTILINE)
LINK = re.compile(r"\]\(\.\./(?:src/)?((?:keysift|evidence)/[\w/]+)\.py\)")
STEP = re.compile(r"^( *)(\d+)\. (.*?)(?=^ *\d+\. |\Z)", flags=re.MULTILINE | re.DOTALL)


class Step(NamedTuple):
    """A step of a path: its module and its callers, outermost first."""

    module: str
    callers: tuple[str, ...]
    builder: str | None  # the module that connects it to its caller, if named
    process: bool  # its caller starts it with `python -m`


def steps_of(path: str) -> Iterator[Step]:
    """Steps in reading order. Each is indented under its caller and numbered among its siblings."""
    callers: list[str] = []
    counts: list[int] = []
    for indent, number, text in STEP.findall(path):
        depth, remainder = divmod(len(indent), 3)
        assert remainder == 0, text
        assert depth <= len(callers), f"no caller: {text}"
        counts = [*counts[: depth + 1], 0][: depth + 1]
        counts[depth] += 1
        assert int(number) == counts[depth], f"numbered {number}, expected {counts[depth]}: {text}"
        header = re.split(r":\s", text, maxsplit=1)[0]
        names = [name.replace("/", ".") for name in LINK.findall(header)]
        assert len(names) == 1 + ("built by" in header), f"expected one module, or one and its builder: {text}"
        builder = names[1] if len(names) > 1 else None
        yield Step(names[0], tuple(callers[:depth]), builder, "started as a process" in header)
        callers = [*callers[:depth], names[0]]


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    return grimp.build_graph("keysift", "evidence", cache_dir=None)


def title(path: str) -> str:
    return path.splitlines()[0]


@pytest.mark.parametrize("path", PATHS, ids=title)
def test_each_step_is_reached_from_its_caller(path: str, imports: grimp.ImportGraph) -> None:
    """By imports; or a named builder imports both; or the caller starts the module as a process."""
    for step in steps_of(path):
        for caller in step.callers[-1:]:
            if step.process:
                tree = ast.parse(Path(importlib.import_module(caller).__file__ or "").read_text())
                strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
                assert {"-m", step.module} <= strings, f"{caller} does not start {step.module}"
                continue
            edges = [(caller, step.module)]
            if step.builder is not None:
                edges = [(step.builder, caller), (step.builder, step.module)]
            for importer, imported in edges:
                assert imports.chain_exists(importer, imported), f"{importer} does not import {imported}"


@pytest.mark.parametrize("path", PATHS, ids=title)
def test_no_step_imports_its_callers(path: str, imports: grimp.ImportGraph) -> None:
    for step in steps_of(path):
        for caller in step.callers:
            assert not imports.chain_exists(step.module, caller), f"{step.module} imports its caller {caller}"


@pytest.mark.parametrize("path", PATHS, ids=title)
def test_each_module_appears_once_on_a_path(path: str) -> None:
    modules = [step.module for step in steps_of(path)]
    assert len(modules) >= 5
    assert len(modules) == len(set(modules))


def test_the_six_paths_are_there() -> None:
    titles = ["A token", "An attend call", "A layer of tiles", "A training step", "An inspection", "A study"]
    assert [*map(title, PATHS)] == titles


def test_every_package_is_described() -> None:
    packages = {path.parent.name for path in (ROOT / "src" / "keysift").glob("*/__init__.py")}
    assert {Path(module).parent.name for module in LINK.findall(INTRODUCTION)} == packages
