"""The command `keysift`. `python -m keysift` is the same; `torchrun ... -m keysift` runs it in every process."""

import os
import signal
import sys

# `python -m` looks for modules in the working folder first, where a numpy.py may lie beside the user's text.
if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]


def main() -> None:
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        # While modules load, Ctrl-C ends the process at once instead of raising in the middle of an import.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from keysift.cli.main import main as run_command

    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    run_command()


if __name__ == "__main__":
    main()
