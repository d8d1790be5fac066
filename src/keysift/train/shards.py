"""Training state as safetensors shards and a JSON index, without pickle. Any number of processes reads what any other
number wrote: a tensor that is cut along its first axis (fsdp2) is put together from the parts that overlap.

state/shard-00000.safetensors   what process 0 wrote
state/index.json                for each tensor its shape and its parts: file, first row, number of rows
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from keysift.core import jsons
from keysift.core.config import config, from_dict
from keysift.core.errors import ConfigError, DataError

INDEX = "index.json"


@config
class Part:
    """Rows of a tensor in one file; a tensor without axes is one row."""

    file: str
    first: int
    rows: int


@config
class Entry:
    """A tensor and the parts that cover it, in order."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def write_shard(folder: Path, tensors: Mapping[str, Tensor], rank: int) -> None:
    """What this process is to write; the metadata says where in the whole tensor a part belongs."""
    held: dict[str, Tensor] = {}
    places: dict[str, str] = {}
    for name, tensor in tensors.items():
        local, first = _held(tensor)
        if _rows(local.shape):  # the last processes may hold no row at all
            held[name] = local.detach().cpu().contiguous()
            places[name] = json.dumps([list(tensor.shape), first])
    save_file(held, folder / f"shard-{rank:05d}.safetensors", metadata=places)


def write_index(folder: Path) -> None:
    """From the headers of the shards; for one process, when all are written."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("shard-*.safetensors")):
        with safe_open(path, "pt") as shard:
            for name, place in shard.metadata().items():
                shape, first = jsons.loads(place)
                rows = _rows(shard.get_slice(name).get_shape())
                entry = found.setdefault(name, {"shape": shape, "parts": []})
                entry["parts"].append({"file": path.name, "first": first, "rows": rows})
    (folder / INDEX).write_text(json.dumps(found) + "\n")


def read_index(folder: Path) -> dict[str, Entry]:
    if not (folder / INDEX).is_file():
        raise DataError(
            f"{folder} holds training state of an earlier version, in a format that can run code when it is read; "
            f"its model still loads and generates, but to train on, start a new run with --out"
        )
    try:
        found = {name: from_dict(Entry, entry) for name, entry in jsons.loads((folder / INDEX).read_text()).items()}
    except (ValueError, AttributeError, ConfigError) as error:
        raise DataError(
            f"{folder / INDEX} does not describe training state ({error}); remove the checkpoint"
        ) from error
    for name, entry in found.items():
        at = 0
        for part in entry.parts:
            if part.first != at or part.rows < 1 or Path(part.file).name != part.file:
                break
            at += part.rows
        if at != _rows(entry.shape):
            raise DataError(f"{folder / INDEX}: the parts of {name} do not cover it; remove the checkpoint")
    return found


@torch.no_grad()
def read(folder: Path, index: Mapping[str, Entry], tensors: Mapping[str, Tensor]) -> None:
    """Fill `tensors`, each process the rows it holds."""
    with ExitStack() as stack:
        shards: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if name not in index or index[name].shape != tuple(tensor.shape):
                came = f"has shape {index[name].shape}" if name in index else "is missing"
                raise DataError(f"{folder}: {name} {came}, the model needs {tuple(tensor.shape)}; start a new run")
            local, first = _held(tensor)
            last = first + _rows(local.shape)
            for part in index[name].parts:
                low, high = max(first, part.first), min(last, part.first + part.rows)
                if low >= high:
                    continue
                try:
                    if part.file not in shards:
                        shards[part.file] = stack.enter_context(safe_open(folder / part.file, "pt"))
                    rows = shards[part.file].get_tensor(name) if not local.ndim else shards[part.file].get_slice(name)
                    came_rows = rows if not local.ndim else rows[low - part.first : high - part.first]
                except (OSError, SafetensorError, IndexError) as error:
                    raise DataError(f"{folder / part.file} cannot be read ({error}); remove the checkpoint") from error
                place = local[low - first : high - first] if local.ndim else local
                if came_rows.shape != place.shape or came_rows.dtype != place.dtype:
                    raise DataError(f"{folder / part.file} does not hold what {INDEX} says of {name}; start a new run")
                place.copy_(came_rows)


def _held(tensor: Tensor) -> tuple[Tensor, int]:
    """What this process holds of a tensor, and its first row in the whole."""
    if not isinstance(tensor, DTensor):
        return tensor, 0
    assert tensor.placements == (Shard(0),), tensor.placements
    rows = -(-tensor.shape[0] // tensor.device_mesh.size())
    return tensor.to_local(), min(rows * tensor.device_mesh.get_local_rank(), tensor.shape[0])


def _rows(shape: Any) -> int:
    return int(shape[0]) if len(shape) else 1
