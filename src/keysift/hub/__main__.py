"""`python -m keysift.hub serve ...`: the command line of transformers, with keysift's models known to it."""

import transformers
from transformers.cli.transformers import app

from keysift import hub

if __name__ == "__main__":
    for name in hub.__all__:
        if name.endswith("ForCausalLM"):
            # `serve` looks for the class that config.json names in transformers itself.
            setattr(transformers, name, getattr(hub, name))
    app()
