"""Whose model a config.json describes: one of ours, or another library's and how to bring it here. Free of torch."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keysift.core import jsons

MODEL_TYPE = "keysift_"  # before the name of a kind: model_type is one namespace for every library
GGUF = ".gguf"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # what keysift import reads


def kind_named(data: Any) -> str | None:
    """The kind that the content of a config.json names, known or not; None if it is of no model of keysift."""
    if not isinstance(data, dict):
        return None
    name, model_type = data.get("model"), data.get("model_type")
    if isinstance(model_type, str) and model_type.startswith(MODEL_TYPE):
        return model_type.removeprefix(MODEL_TYPE)
    # "model" is how directories were marked before transformers could read them.
    return name if isinstance(name, str) and model_type is None else None


def is_foreign(told: Mapping[str, Any]) -> bool:
    """Whether a config.json is one that transformers writes for a model of its own."""
    return kind_named(told) is None and ("model_type" in told or "architectures" in told)


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
