"""`python -m keysift.hub serve ...`: the command line of transformers, with keysift's models known to it."""

from transformers.cli.transformers import app

import keysift.hub  # noqa: F401

if __name__ == "__main__":
    app()
