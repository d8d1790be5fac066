"""Measuring in a process of its own: for peaks of memory, and for other variants of the compiled kernel.

python -m keysift.bench.child MODULE FUNCTION ARGUMENT...
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from keysift.core.errors import UnsupportedError

NONE: Mapping[str, str] = {}


def in_a_child(function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] = NONE) -> Any:
    """The function's answer from a fresh process. Arguments and answer travel as JSON."""
    # -P: a folder named keysift where the command was started is not what gets imported.
    command = [sys.executable, "-P", "-m", __name__, function.__module__, function.__name__]
    done = subprocess.run(
        [*command, *map(json.dumps, arguments)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise UnsupportedError(
            f"{function.__name__} failed in a process of its own (exit code {done.returncode}): "
            f"{said[-1] if said else 'it said nothing'}; try again with --quick, or where there is more memory"
        )
    return json.loads(done.stdout)


if __name__ == "__main__":
    module, name, *given = sys.argv[1:]
    found = getattr(import_module(module), name)(*map(json.loads, given))
    sys.stdout.write(json.dumps(found))
