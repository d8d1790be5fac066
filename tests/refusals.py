"""`refuses(...)` is pytest.raises that remembers which `raise` it met; `--every-raise` fails where one was not met.

Loaded as a pytest plugin (see pyproject.toml). A message is tested where its text is matched, so `match` is required.
"""

import ast
import re
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keysift.core.errors import KeysiftError

SOURCE = Path(__file__).parent.parent / "src"
met: set[str] = set()


@contextmanager
def refuses(match: str, error: type[BaseException] = KeysiftError) -> Iterator[None]:
    with pytest.raises(error, match=match) as caught:
        yield
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(SOURCE)]
    if ours:
        met.add(f"{Path(ours[-1].filename).relative_to(SOURCE)}:{ours[-1].lineno}")


def refuses_in_process(match: str, command: list[str]) -> None:
    """A command line refuses: exit code 2, the message on stderr, no traceback."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert re.search(match, done.stderr), done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def raises_in_source() -> set[str]:
    sites = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                sites.add(f"{path.relative_to(SOURCE)}:{node.lineno}")
    return sites


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-raise", action="store_true", help="fail unless a test matched the text of every raise")


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["met"] = sorted(met)
        return
    if session.config.getoption("--every-raise"):
        from tests.machine import LACKS_KERNEL  # after conftest has set up the environment

        missed = sorted(raises_in_source() - met)
        session.config.stash[_MISSED] = missed
        # Without the kernel, tests that meet some of them are skipped, and say so.
        if missed and not LACKS_KERNEL:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    met.update(getattr(node, "workeroutput", {}).get("met", ()))


_MISSED = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missed = terminalreporter.config.stash.get(_MISSED, [])
    if missed:
        terminalreporter.section("raises that no test met")
        for site in missed:
            terminalreporter.line(site)
