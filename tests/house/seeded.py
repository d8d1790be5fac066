"""Run tests against a changed copy of the source, in a process of its own and in those it starts."""

import os
import subprocess
import sys
from pathlib import Path

# An editable install puts a finder before PYTHONPATH; without it the copy is what gets imported, and that is checked.
_WITHOUT_EDITABLE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith("_editable")]
"""
_BOOT = """
import sys
source = sys.argv.pop(1)
import keysift, pytest
assert keysift.__file__.startswith(source), keysift.__file__
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def only_from(source: Path) -> dict[str, str]:
    """An environment in which `keysift` is imported from `source`, whatever is installed."""
    # Every Python that finds this on its path runs it when it starts: torchrun's processes too.
    (source / "sitecustomize.py").write_text(_WITHOUT_EDITABLE)
    return {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}


def run_tests(source: Path, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = only_from(source)
    command = [sys.executable, "-c", _BOOT, str(source), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=root, env=environment)
