"""One run of a sweep, in a process of its own: python -P -m keysift.sweep.child CONFIG.toml RUN '{"steps": 100}'

The last argument holds the fields to change: of the config for a new run, of the stored config for a resumed one.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

from keysift.core.errors import KeysiftError
from keysift.core.shown import shown
from keysift.runs.directory import Run
from keysift.runs.layout import holds_a_run
from keysift.train.config_file import read_toml
from keysift.train.facts import read_facts
from keysift.train.loop import train


def main(file: str, run: str, changes: str) -> int:
    path = Path(run)
    try:
        resume = holds_a_run(path)
        config = read_facts(Run(path)).config if resume else read_toml(Path(file))
        train(replace(config, **json.loads(changes)), path, resume=resume, show=False)
    except KeysiftError as error:
        sys.stderr.write(f"{shown(error)}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
