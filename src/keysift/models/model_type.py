"""Identify the model that a config.json describes: a keysift model, or a Hugging Face model. Free of torch."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keysift.core import safe_json

MODEL_TYPE = "keysift_"  # prefix of our names: all libraries share the namespace of model_type
GGUF = ".gguf"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # the families that keysift import reads


def keysift_kind(data: Any) -> str | None:
    """The kind of keysift model that a parsed config.json names, registered or not; None for other models."""
    if not isinstance(data, dict):
        return None
    model_type = data.get("model_type")
    if isinstance(model_type, str) and model_type.startswith(MODEL_TYPE):
        return model_type.removeprefix(MODEL_TYPE)
    return None


def is_hugging_face(config: Mapping[str, Any]) -> bool:
    """Whether a parsed config.json describes a model of transformers."""
    return keysift_kind(config) is None and ("model_type" in config or "architectures" in config)


def import_advice(path: Path) -> str | None:
    """A sentence that says how to import a Hugging Face directory or a GGUF file; None for any other path."""
    how = f"import it with keysift import {shlex.quote(str(path))} --out DIRECTORY"
    if path.suffix == GGUF and path.is_file():
        return f"{path} is a GGUF file; {how}"
    try:
        config = safe_json.load(path / "config.json")
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or not is_hugging_face(config):
        return None
    family = config.get("model_type")
    if family not in FAMILIES:
        how = f"keysift import reads {', '.join(FAMILIES)}; keysift inspect reads any causal model"
    return f"{path} is a Hugging Face model ({family}); {how}"
