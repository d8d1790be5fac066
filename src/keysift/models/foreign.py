"""Models of others, recognised by their files: what they are, and how to bring them here. Free of torch."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keysift.core import jsons

GGUF = ".gguf"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # what keysift import reads


def is_foreign(told: Mapping[str, Any]) -> bool:
    """Whether a config.json is one that transformers writes for a model of its own."""
    return "model" not in told and ("model_type" in told or "architectures" in told)


def advice(path: Path) -> str | None:
    """What to do with a directory or file that holds somebody else's model; None if it does not."""
    how = f"bring it here with keysift import {shlex.quote(str(path))} --out DIRECTORY"
    if path.suffix == GGUF and path.is_file():
        return f"{path} is a GGUF file; {how}"
    try:
        told = jsons.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(told, dict) or not is_foreign(told):
        return None
    family = told.get("model_type")
    if family not in FAMILIES:
        how = f"keysift import reads {', '.join(FAMILIES)}, keysift inspect reads any causal one"
    return f"{path} is a Hugging Face model ({family}); {how}"
