"""Run tests or commands against a changed copy of the whole source tree."""

import os
import subprocess
import sys
from pathlib import Path

# An editable install may add an import hook that precedes PYTHONPATH.
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


def environment_for(source: Path) -> dict[str, str]:
    """Environment in which `keysift` is imported from `source`, whatever is installed."""
    # Every Python process runs sitecustomize when it starts, torchrun's included.
    (source / "sitecustomize.py").write_text(_WITHOUT_EDITABLE)
    return {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}


def run_tests(source: Path, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in `root` with `keysift` imported from `source`."""
    command = [sys.executable, "-c", _BOOT, str(source), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=root, env=environment_for(source))
