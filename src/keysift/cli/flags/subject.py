"""Models of the lens verbs: keysift models, Hugging Face directories, GGUF files and names on the hub."""

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keysift.core.errors import DataError

if TYPE_CHECKING:
    from keysift.lens.model import LensModel

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def check_subject(where: str) -> None:
    """Raise DataError for a path that holds no model and cannot be a name on the hub. Does not import torch."""
    path = Path(where).expanduser()
    if path.exists():
        if not path.is_dir() and not (path.is_file() and path.suffix == ".gguf"):
            raise DataError(f"{where} is not a model: expected a directory or a .gguf file; name the model's directory")
    elif not _HUB_NAME.fullmatch(where) or where.endswith(".gguf"):
        raise DataError(
            f"{where} is neither a keysift model, nor a local Hugging Face directory, nor a name that can be "
            f"downloaded; correct the path"
        )


def open_subject(where: str) -> "LensModel":
    """Open a model for the lens. A keysift model is opened without importing transformers."""
    from keysift.lens.keysift_model import is_keysift_model, open_keysift_model

    path = Path(where).expanduser()
    if is_keysift_model(path):
        return open_keysift_model(path)
    with _no_collection():
        from keysift.hub.lens_model import open_model

        return open_model(where)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector: importing transformers makes a million objects to visit, and they all stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
