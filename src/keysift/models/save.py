"""Save and load a model directory: config.json and model.safetensors. No pickle.

transformers reads the same two files (keysift.hub): `model_type` in config.json names the kind of model. The file may
also contain fields of transformers that do not describe the model.

`save` is atomic: it fills a new directory next to the old one and exchanges the two names in one step, so readers find
a complete model, old or new, also after a crash. Other files of the directory (a tokenizer, a log) are kept as hard
links. On a file system that cannot exchange names (NFS) the name is missing for a moment: `load` retries, and after a
crash in that moment the next `save` first restores the old model.
"""

import fcntl
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from keysift.core import config as configs
from keysift.core.disk import atomic_folder
from keysift.core.errors import DataError, KeysiftError
from keysift.core.listing import first_three
from keysift.mechanisms.lookup import loaded_plugins, require_plugins
from keysift.models.language_model import LanguageModel
from keysift.models.model_type import CONFIG, MODEL_TYPE, WEIGHTS, keysift_kind, read_keysift_config
from keysift.models.registry import MODEL_KINDS, ModelKind, build_meta, kind_of
from keysift.models.tensor_files import Entry, Shards

PLUGINS = "keysift_plugins"  # modules that registered mechanisms when the model was saved
# Fields that transformers adds to config.json. They affect how it runs the model, not what the model computes.
HOST_FIELDS = frozenset(
    (
        *(
            "architectures",
            "auto_map",
            "chunk_size_feed_forward",
            "dtype",
            "id2label",
            "is_encoder_decoder",
            "label2id",
        ),
        *("output_attentions", "output_hidden_states", "problem_type", "return_dict", "torch_dtype", "use_cache"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "transformers_version"),
    )
)
_FLOATS = ("F64", "F32", "F16", "BF16")
_TRIES = 100  # how often to read again when the model is replaced while it is read


def save(model: LanguageModel, directory: Path | str) -> None:
    """Write a model directory atomically. An existing directory keeps its other files.

    If `directory` is a symbolic link, the directory it points to is replaced and the link stays.
    """
    directory = Path(os.path.realpath(directory))
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is a file; a model is saved as a directory, choose another name")
    kind_of(model)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(directory.parent), atomic_folder(directory, replace=True) as fresh:
        if directory.exists():
            shutil.copytree(directory, fresh, copy_function=_link, symlinks=True, dirs_exist_ok=True)
            # Hard links share their bytes with the old files, so remove them instead of overwriting.
            for name in (CONFIG, WEIGHTS):
                (fresh / name).unlink(missing_ok=True)
        write_model(model, fresh)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Lock the folder: of two concurrent saves, each would copy files that the other removes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_model(model: LanguageModel, folder: Path) -> None:
    """Write config.json and the weights into a folder. The caller makes the folder atomic."""
    kind = kind_of(model)
    names = {"model_type": f"{MODEL_TYPE}{kind.name}", "architectures": [f"{kind.model.__name__}ForCausalLM"]}
    plugins = {PLUGINS: list(loaded_plugins())} if loaded_plugins() else {}
    config = {**names, **plugins, **configs.to_dict(model.config)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def load(directory: Path | str) -> LanguageModel:
    """Load a saved model, in the dtype of its weights (the widest one, if there are several).

    Raises DataError if the files are damaged or do not match. If the model is replaced meanwhile, it is read again.
    """
    directory = Path(directory)
    for _ in range(_TRIES):
        with _watch(directory) as replaced:
            try:
                model = _load(directory)
            except (KeysiftError, OSError):
                if not replaced():
                    raise
            else:
                if not replaced():
                    return model
    return _load(directory)


@contextmanager
def _watch(directory: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether the directory has been replaced.

    The files of a run are links to its newest checkpoint, so the directory behind config.json is watched.
    """

    def real() -> str:
        return os.path.dirname(os.path.realpath(directory / CONFIG))

    def inode() -> tuple[int, int] | None:
        try:
            status = os.stat(real())
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def replaced() -> bool:
        if inode() is None:
            time.sleep(0.02)  # where names cannot be exchanged, the new directory appears in a moment
        return inode() != before

    try:
        # While the directory is open, its inode number is not reused.
        handle = os.open(real(), os.O_RDONLY)
    except OSError:
        handle = None
    # Taken from the open handle: the name may already belong to another directory.
    status = None if handle is None else os.fstat(handle)
    before = None if status is None else (status.st_dev, status.st_ino)
    try:
        yield replaced
    finally:
        if handle is not None:
            os.close(handle)


def _load(directory: Path) -> LanguageModel:
    _, config = read_model_config(directory / CONFIG)
    weights = Shards(directory)
    model = meta_model_for(directory, config, weights.header)
    model.load_state_dict(to_common_dtype({name: weights.read(name) for name in weights.header}), assign=True)
    return model


def read_model_config(path: Path) -> tuple[ModelKind, Any]:
    """Kind and config of the model that a config.json describes. Raises DataError for any other file."""
    data = read_keysift_config(path)
    name = keysift_kind(data)
    assert name is not None
    kind = MODEL_KINDS.find(name)
    plugins = data.get(PLUGINS, [])
    if isinstance(plugins, list) and all(isinstance(plugin, str) for plugin in plugins):
        require_plugins(plugins, str(path.parent))
    return kind, configs.from_dict(kind.config, model_fields(data))


def model_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of config.json that describe the model. Unknown fields are included; the config class rejects them."""
    ignored = {"model_type", PLUGINS, *HOST_FIELDS}
    return {name: value for name, value in data.items() if name not in ignored}


def meta_model_for(
    directory: Path, config: Any, header: Mapping[str, Entry], *, spelled: Callable[[str], str] = str
) -> LanguageModel:
    """The model of a config on the meta device. Raises DataError unless the weights in `header` fit it.

    Sizes are compared with the weights first, so that a malicious config cannot allocate a huge model. `spelled` maps
    the name of a weight to its name in the file, for messages.
    """
    elements = sum(math.prod(entry.shape) for entry in header.values())
    sizes = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "context"}
    too_large = next((name for name, size in sizes.items() if type(size) is int and size > max(elements, 1)), None)
    if too_large is None and sizes["depth"] > len(header):
        too_large = "depth"
    if too_large is not None:
        raise DataError(
            f"{directory}: {CONFIG} says {too_large} {sizes[too_large]}, more than {WEIGHTS} can hold "
            f"({len(header)} tensors, {elements:,} numbers); the files belong to different models"
        )
    try:
        model = build_meta(config)
    except (RuntimeError, OverflowError) as error:  # what torch raises for a size beyond an integer's range
        raise DataError(f"{directory}: {CONFIG} describes a model that cannot be built ({error})") from error
    _check(directory, model.state_dict(), header, spelled)
    return model


def _check(
    directory: Path, expected: Mapping[str, Tensor], header: Mapping[str, Entry], spelled: Callable[[str], str]
) -> None:
    faults = [f"{spelled(name)} is missing" for name in expected if name not in header]
    faults += [f"{spelled(name)} is not a weight of this model" for name in header if name not in expected]
    faults += [
        f"{spelled(name)} is {header[name].shape}, the config says {tuple(expected[name].shape)}"
        for name in expected
        if name in header and header[name].shape != tuple(expected[name].shape)
    ]
    faults += [
        f"{spelled(name)} is {entry.dtype}, weights are one of {', '.join(_FLOATS)}"
        for name, entry in header.items()
        if entry.dtype not in _FLOATS
    ]
    if faults:
        raise DataError(f"{directory}: {WEIGHTS} does not fit {CONFIG}: {first_three(faults)}")


def to_common_dtype(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert all tensors to the widest of their dtypes. A layer cannot compute with mixed dtypes."""
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in state.values()))
    return {name: tensor.to(widest) for name, tensor in state.items()}
