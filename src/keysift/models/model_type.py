"""Identify the model that a config.json describes: a keysift model, or a Hugging Face model.

Free of torch, so that a command refuses a missing or wrong model before it imports torch.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keysift.core import safe_json
from keysift.core.errors import DataError
from keysift.core.registry import nearest
from keysift.models.presets import PRESETS

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MODEL_TYPE = "keysift_"  # prefix of our names: all libraries share the namespace of model_type
GGUF = ".gguf"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3")  # the families that keysift import reads


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
        config = safe_json.load(path / CONFIG)
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or not is_hugging_face(config):
        return None
    family = config.get("model_type")
    if family not in FAMILIES:
        how = f"keysift import reads {', '.join(FAMILIES)}; keysift inspect reads any causal model"
    return f"{path} is a Hugging Face model ({family}); {how}"


def read_keysift_config(path: Path) -> dict[str, Any]:
    """The parsed config.json of a keysift model. Raises DataError for any other file."""
    advice = import_advice(path.parent)
    if not path.is_file():
        raise DataError(
            advice or f"{path} is missing; a model directory has {CONFIG} and {WEIGHTS}, as save() writes them"
        )
    try:
        data = safe_json.load(path)
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); was it cut short?") from error
    if advice is not None:
        raise DataError(advice)
    if keysift_kind(data) is None:
        raise DataError(
            f'{path} has no model_type of keysift; expected for example "model_type": "{MODEL_TYPE}multiscreen"'
        )
    config: dict[str, Any] = data
    return config


def read_source_config(path: Path) -> dict[str, Any]:
    """The parsed config.json of a Hugging Face directory. Raises DataError for any other directory."""
    if not (path / CONFIG).is_file():
        raise DataError(f"{path} has no {CONFIG}; give a Hugging Face directory or a .gguf file")
    try:
        config = safe_json.load(path / CONFIG)
    except ValueError as error:
        raise DataError(f"{path / CONFIG} is not JSON ({error}); was it cut short?") from error
    if not isinstance(config, dict) or not is_hugging_face(config):
        ours = keysift_kind(config) is not None
        why = "is a keysift model already; use it as it is" if ours else "has no model_type"
        raise DataError(f"{path / CONFIG} {why}")
    return config


def check_import_source(path: Path) -> None:
    """Raise DataError unless the path is a GGUF file or a Hugging Face directory."""
    if path.suffix != GGUF:
        read_source_config(path)
    elif not path.is_file():
        raise DataError(f"{path} is not a file; give a Hugging Face directory or a .gguf file")


def check_model_or_preset(name: str) -> None:
    """Raise DataError unless the name is a directory with a keysift model, or a preset."""
    path = Path(name)
    if path.is_dir():
        read_keysift_config(path / CONFIG)
    elif name not in PRESETS:
        raise DataError(
            import_advice(path)
            or f"{name} is neither a directory with a model nor a preset; {nearest(name, PRESETS.names())}"
            f"train one with keysift train, or see keysift presets"
        )
