"""Run pytest in a process forked from one that has imported torch, but not keysift.

A new Python process spends seconds on importing torch. A fork takes milliseconds. It imports keysift itself, so it can
use another environment or changed source.
"""

import atexit
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
# torch._dynamo is imported lazily and is slow. None of these modules may import keysift.
PRELOADED = ("torch", "torch._dynamo", "torch._inductor", "numpy", "hypothesis", "pytest", "rich", "tyro")


class Outcome(NamedTuple):
    """Exit code and output of a test run."""

    code: int
    output: str


def run_pytest(*arguments: str, startup: Path | None = None, **environment: str) -> Outcome:
    """Run pytest with these arguments and additions to the environment.

    `startup` is a folder with a sitecustomize.py, which runs first in the fork and in every Python process it starts.
    """
    if startup is not None:
        paths = [str(startup), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.NamedTemporaryFile() as output:
        request = {"arguments": ["-q", "-p", "no:cacheprovider", *arguments], "environment": environment}
        code = _server().request(request | {"startup": startup and str(startup), "output": output.name})
        return Outcome(code, Path(output.name).read_text())


class _Server:
    """A process that runs `main`, and the pipes to it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.forked"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        atexit.register(self._process.terminate)

    def request(self, request: dict[str, object]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))


@functools.cache
def _server() -> _Server:
    return _Server()


def _fork(arguments: list[str], environment: dict[str, str], startup: str | None, output: str) -> int:
    """Run pytest in a fork, with its output in the file `output`. Returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = os.EX_SOFTWARE
    try:
        file = os.open(output, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # No test needs pytest's installed plugins, and they take a second to import.
        os.environ.update(environment, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        if startup is not None:
            exec(Path(startup, "sitecustomize.py").read_text(), {})
        code = int(sys.modules["pytest"].main(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Read requests from stdin, one JSON object per line, and write the exit code of each forked run."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert "keysift" not in sys.modules
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_fork(**json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
