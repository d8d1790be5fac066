"""`python -m keysift` is `keysift`, and `torchrun ... -m keysift` is keysift in every process."""

import os
import sys

# `python -m` looks for modules in the working folder first, where a numpy.py may lie beside the user's text.
if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]

from keysift.cli.main import main

if __name__ == "__main__":
    main()
