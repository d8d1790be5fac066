"""Call a function in a fresh process, to measure peak memory or another variant of the compiled kernel.

python -m keysift.bench.subprocess_call MODULE FUNCTION ARGUMENT...
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from keysift.core.errors import UnsupportedError

NO_CHANGES: Mapping[str, str] = {}


def run_in_subprocess(
    function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str] = NO_CHANGES
) -> Any:
    """Return the result of a module-level function called in a fresh process. Arguments and result are sent as JSON."""
    # -P: a folder named keysift in the current directory must not be imported instead of this package.
    command = [sys.executable, "-P", "-m", __name__, function.__module__, function.__name__]
    process = subprocess.run(
        [*command, *map(json.dumps, arguments)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines()
        raise UnsupportedError(
            f"{function.__name__} failed in a process of its own (exit code {process.returncode}): "
            f"{lines[-1] if lines else 'no error message'}; try again with --quick, or on a machine with more memory"
        )
    return json.loads(process.stdout)


if __name__ == "__main__":
    module, name, *arguments = sys.argv[1:]
    sys.stdout.write(json.dumps(getattr(import_module(module), name)(*map(json.loads, arguments))))
