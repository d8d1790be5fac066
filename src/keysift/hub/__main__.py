"""`python -m keysift.hub serve ...`: the command line of transformers with keysift's models registered."""

from pathlib import Path

import transformers
from huggingface_hub import constants
from transformers.cli.transformers import app

from keysift import hub

if __name__ == "__main__":
    for name in hub.__all__:
        if name.endswith("ForCausalLM"):
            # `serve` looks up the class named in config.json as an attribute of transformers.
            setattr(transformers, name, getattr(hub, name))
    # `serve` lists the models in the cache folder and fails if there is no folder.
    Path(constants.HF_HUB_CACHE).mkdir(parents=True, exist_ok=True)
    app()
