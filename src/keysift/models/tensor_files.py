"""Weights in safetensors files: one file, or shards with an index. Headers are read first; no pickle."""

from pathlib import Path
from typing import Any, NamedTuple, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from keysift.core import jsons
from keysift.core.errors import DataError, UnsupportedError

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"


class Entry(NamedTuple):
    """What a header says of one tensor."""

    shape: tuple[int, ...]
    dtype: str


class Tensors(Protocol):
    """Named tensors on disk: their sizes at once, their numbers when asked for."""

    header: dict[str, Entry]

    def read(self, name: str) -> Tensor: ...


class Shards:
    """The weights of a directory. Its files stay open, so that all that is read of one is of one and the same file."""

    def __init__(self, directory: Path) -> None:
        self.header: dict[str, Entry] = {}
        self._opened: dict[str, Any] = {}
        placed = _files(directory)
        self.files = sorted(placed)
        for file, names in placed.items():
            opened, found = _open(file)
            missing = [name for name in names if name not in found]
            if missing:
                raise DataError(f"{file} does not hold {missing[0]}, which {INDEX} places there; copy the files again")
            self.header |= found
            self._opened |= dict.fromkeys(found, opened)

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._opened[name].get_tensor(name)
        return tensor


def _files(directory: Path) -> dict[Path, list[str]]:
    """Each file, and what the index places in it; without an index nothing is said."""
    if (directory / INDEX).is_file():
        places = _index(directory / INDEX)
        files: dict[Path, list[str]] = {}
        for name, place in places.items():
            files.setdefault(directory / place, []).append(name)
        for file in files:
            if not file.is_file():
                raise DataError(f"{file} is missing; {INDEX} says that the model has {len(files)} files, copy them all")
        return files
    if (directory / WEIGHTS).is_file():
        return {directory / WEIGHTS: []}
    pickled = next((path for ending in ("*.bin", "*.pt", "*.pth") for path in directory.glob(ending)), None)
    if pickled is not None:
        raise UnsupportedError(
            f"{pickled} is a pickle, which can run code when it is opened; save the model with transformers as "
            f"safetensors: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)"
        )
    raise DataError(f"{directory} holds no weights; expected {WEIGHTS}, or its shards with {INDEX}")


def _index(path: Path) -> dict[str, str]:
    try:
        places: Any = jsons.loads(path.read_bytes())["weight_map"]
        fine = all(isinstance(file, str) and Path(file).name == file for file in places.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not an index of weights ({error!r}); copy it again from its source") from error
    if not fine or not places:
        raise DataError(f"{path} must name files of its own folder; copy it again from its source")
    return dict(places)


def _open(file: Path) -> tuple[Any, dict[str, Entry]]:
    try:
        opened: Any = safe_open(file, framework="pt")
        parts = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
        return opened, {name: Entry(tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}
    except (SafetensorError, RuntimeError) as error:  # torch's own, if the file is shorter than its header says
        raise DataError(f"{file} is not a whole safetensors file ({error}); copy it again from its source") from error
