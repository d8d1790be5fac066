"""`refuses(...)` is `pytest.raises` that also records which `raise` statement of the source was executed.

Loaded as a pytest plugin (see pyproject.toml). `match` is required: every message is tested.
`--every-raise` lists the raise statements that no test executed. `--raise-ratchet` also fails the run if one of them is
not in tests/untested_raises.txt; CI uses it. Lines of that file may be removed, not added.
"""

import ast
import re
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from keysift.core.errors import KeysiftError

SOURCE = Path(__file__).parent.parent / "src"
UNTESTED = Path(__file__).parent / "untested_raises.txt"
executed: set[str] = set()  # "file:line" of the raise statements that a test matched
_UNTESTED = pytest.StashKey[list["Raise"]]()


class Raise(NamedTuple):
    """A raise statement. `identity` names file, function and message, and survives edits elsewhere in the file."""

    place: str
    identity: str


@contextmanager
def refuses(match: str, error: type[BaseException] = KeysiftError) -> Iterator[None]:
    """Assert that the block raises `error` with a message that matches, and record the raise statement."""
    with pytest.raises(error, match=match) as caught:
        yield
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(SOURCE)]
    if ours:
        executed.add(f"{Path(ours[-1].filename).relative_to(SOURCE)}:{ours[-1].lineno}")


def refuses_in_process(match: str, command: list[str]) -> None:
    """Assert that a command exits with code 2, the message on stderr and no traceback."""
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert process.returncode == 2, (process.returncode, process.stdout, process.stderr)
    assert re.search(match, process.stderr), process.stderr
    assert "Traceback" not in process.stderr, process.stderr


def raises_in(text: str, file: str) -> Iterator[Raise]:
    """Raise statements of a source file, except those that re-raise the current exception."""

    def visit(node: ast.AST, scope: str) -> Iterator[Raise]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Raise) and child.exc is not None:
                yield Raise(f"{file}:{child.lineno}", f"{file} {scope} {_message(child.exc)}")
            yield from visit(child, getattr(child, "name", None) or scope)

    yield from visit(ast.parse(text), "module")


def _message(error: ast.expr) -> str:
    """Class and literal text of a raised error."""
    words = [node.value for node in ast.walk(error) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return " ".join(f"{ast.unparse(getattr(error, 'func', error))} {' '.join(words)}".split())


def new_untested(untested: list[Raise], known: str) -> list[Raise]:
    """Untested raise statements that are not in the list of known ones."""
    return [site for site in untested if site.identity not in known.splitlines()]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-raise", action="store_true", help="list the raise statements that no test executed")
    parser.addoption("--raise-ratchet", action="store_true", help=f"fail if one of them is not in {UNTESTED.name}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["executed"] = sorted(executed)
        return
    ratchet = session.config.getoption("--raise-ratchet")
    if ratchet or session.config.getoption("--every-raise"):
        from tests.machine import LACKS_KERNEL  # after conftest has set up the environment

        sites = [
            site
            for path in sorted(SOURCE.rglob("*.py"))
            for site in raises_in(path.read_text(), str(path.relative_to(SOURCE)))
        ]
        untested = [site for site in sites if site.place not in executed]
        session.config.stash[_UNTESTED] = untested
        # Without the kernel, the tests of some raise statements are skipped.
        if ratchet and not LACKS_KERNEL and new_untested(untested, UNTESTED.read_text()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    executed.update(getattr(node, "workeroutput", {}).get("executed", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    untested = terminalreporter.config.stash.get(_UNTESTED, [])
    if untested:
        terminalreporter.section("raise statements that no test executed")
        new = new_untested(untested, UNTESTED.read_text())
        for site in untested:
            terminalreporter.line(f"{'new  ' if site in new else 'known'} {site.place}  {site.identity}")
