"""Read weights from safetensors: one file, or shards with an index. Headers are read first. No pickle."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from keysift.core import safe_json
from keysift.core.errors import DataError, UnsupportedError
from keysift.models.model_type import WEIGHTS

INDEX = f"{WEIGHTS}.index.json"


class Entry(NamedTuple):
    """Shape and dtype of a tensor in a header."""

    shape: tuple[int, ...]
    dtype: str


class Tensors(Protocol):
    """Named tensors on disk. The header is in memory; `read` loads a tensor."""

    header: dict[str, Entry]

    def read(self, name: str) -> Tensor: ...


class Shards:
    """The weights of a directory. Files stay open, so that every tensor comes from the same version of a file."""

    def __init__(self, directory: Path) -> None:
        self.header: dict[str, Entry] = {}
        self._opened: dict[str, Any] = {}
        names_by_file = _files(directory)
        self.files = sorted(names_by_file)
        for file, names in names_by_file.items():
            opened, header = _open(file)
            missing = [name for name in names if name not in header]
            if missing:
                raise DataError(f"{file} has no tensor {missing[0]}, which {INDEX} places there; copy the files again")
            self.header |= header
            self._opened |= dict.fromkeys(header, opened)

    def read(self, name: str) -> Tensor:
        """Load a tensor."""
        tensor: Tensor = self._opened[name].get_tensor(name)
        return tensor


def _files(directory: Path) -> dict[Path, list[str]]:
    """Weight files of a directory, each with the tensor names that the index assigns to it (none without an index)."""
    if (directory / INDEX).is_file():
        places = _index(directory / INDEX)
        files: dict[Path, list[str]] = {}
        for name, place in places.items():
            files.setdefault(directory / place, []).append(name)
        for file in files:
            if not file.is_file():
                raise DataError(f"{file} is missing; {INDEX} lists {len(files)} files, copy them all")
        return files
    if (directory / WEIGHTS).is_file():
        return {directory / WEIGHTS: []}
    pickled = next((path for ending in ("*.bin", "*.pt", "*.pth") for path in directory.glob(ending)), None)
    if pickled is not None:
        raise UnsupportedError(
            f"{pickled} is a pickle, which can run code when it is opened; save the model with transformers as "
            f"safetensors: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    raise DataError(f"{directory} has no weights; expected {WEIGHTS}, or shards with {INDEX}")


def _index(path: Path) -> dict[str, str]:
    try:
        places: Any = safe_json.load(path)["weight_map"]
        valid = all(isinstance(file, str) and Path(file).name == file for file in places.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not an index of weights ({error!r}); copy it again from its source") from error
    if not valid or not places:
        raise DataError(f"{path} must list files of its own folder; copy it again from its source")
    return dict(places)


def _open(file: Path) -> tuple[Any, dict[str, Entry]]:
    try:
        opened: Any = safe_open(file, framework="pt")
        parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
        return opened, {name: Entry(tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
    except (SafetensorError, RuntimeError) as error:  # torch raises RuntimeError for a truncated file
        raise DataError(
            f"{file} is not a complete safetensors file ({error}); copy it again from its source"
        ) from error
