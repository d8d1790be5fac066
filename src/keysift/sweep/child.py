"""Train one run of a sweep in its own process: python -P -m keysift.sweep.child CONFIG.toml RUN '{"steps": 100}'

The last argument holds the fields to change in the config file of a new run. In a resumed one only `steps` changes.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from keysift.core.errors import KeysiftError
from keysift.core.terminal import escape_line
from keysift.runs.directory import Run
from keysift.runs.layout import is_run_directory
from keysift.train.loop import train
from keysift.train.manifest import read_manifest
from keysift.train.settings import read_toml


def main(file: str, run: str, changes: str) -> int:
    """Start or resume the run. Returns the exit code."""
    path = Path(run)
    try:
        resume = is_run_directory(path)
        config = read_manifest(Run(path)).config if resume else read_toml(Path(file))
        fields = json.loads(changes)
        if resume:
            # Ray repeats a task that lost its node with its first arguments; the stored config has its warm-up.
            fields = {"steps": fields["steps"]}
        train(replace(config, **fields), path, resume=resume, show=False)
    except KeysiftError as error:
        sys.stderr.write(f"{escape_line(error)}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
