"""A model as a directory: config.json (what it is) and model.safetensors (its weights). No pickle.

transformers reads the same two files (keysift.hub): config.json names the kind of model as `model_type` and may carry
fields that transformers keeps in such a file, which say nothing about the model.

`save` fills a new directory beside the old one and exchanges the two names in one step: under the name there is always
one whole model, old or new, for a reader and after a crash. Other files of the directory (a tokenizer, a log) come
along as hard links. Where the file system cannot exchange names (NFS), nothing has the name for a moment: `load` tries
again, and after a crash in that moment the next `save` puts the old model back before it begins.
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
from keysift.core import jsons
from keysift.core.disk import whole_folder
from keysift.core.errors import DataError, KeysiftError
from keysift.models.arch import by_todays_names
from keysift.models.foreign import MODEL_TYPE, advice, kind_named
from keysift.models.kinds import KINDS, Kind, empty, kind_of
from keysift.models.language import LanguageModel
from keysift.models.tensor_files import WEIGHTS, Entry, Shards

CONFIG = "config.json"
# What transformers writes beside a model's own fields. It changes how the model is held or run there, not what it is.
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
_TRIES = 100  # a model that is replaced more often than that while it is read is not worth waiting for


def save(model: LanguageModel, directory: Path | str) -> None:
    """Write the model; an existing directory keeps its other files and is replaced in one step.

    A link to a directory stays one, and the directory it leads to is replaced.
    """
    directory = Path(os.path.realpath(directory))
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is a file; a model is saved as a directory, choose another name")
    kind_of(model)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(directory.parent), whole_folder(directory, replace=True) as fresh:
        if directory.exists():
            shutil.copytree(directory, fresh, copy_function=_link, symlinks=True, dirs_exist_ok=True)
            # The links share their bytes with the old files: they are removed, not written over.
            for name in (CONFIG, WEIGHTS):
                (fresh / name).unlink(missing_ok=True)
        write_files(model, fresh)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Two that save side by side would each copy files that the other is removing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def write_files(model: LanguageModel, folder: Path) -> None:
    """config.json and the weights, into a folder that somebody else makes whole."""
    kind = kind_of(model)
    about = {"model_type": f"{MODEL_TYPE}{kind.name}", "architectures": [f"{kind.model.__name__}ForCausalLM"]}
    told = {**about, **configs.to_dict(model.config)}
    (folder / CONFIG).write_text(json.dumps(told, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def load(directory: Path | str) -> LanguageModel:
    """The saved model, in the type it was saved in (the widest, if its weights have several).

    Anything wrong with the files is one clear error. A model that is replaced meanwhile is read again, whole.
    """
    directory = Path(directory)
    for _ in range(_TRIES):
        with _watched(directory) as replaced:
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
def _watched(directory: Path) -> Iterator[Callable[[], bool]]:
    """Tells whether another directory has the name now; the files of a run are links to its newest checkpoint."""

    def real() -> str:
        return os.path.dirname(os.path.realpath(directory / CONFIG))

    def seen() -> tuple[int, int] | None:
        try:
            found = os.stat(real())
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def replaced() -> bool:
        if seen() is None:
            time.sleep(0.02)  # where names cannot be exchanged, the new one comes in a moment
        return seen() != before

    try:
        # As long as it is held open, no other directory gets its number.
        handle = os.open(real(), os.O_RDONLY)
    except OSError:
        handle = None
    # Asked of what is held: by now the name may be another's, whose number would be free again.
    held = None if handle is None else os.fstat(handle)
    before = None if held is None else (held.st_dev, held.st_ino)
    try:
        yield replaced
    finally:
        if handle is not None:
            os.close(handle)


def _load(directory: Path) -> LanguageModel:
    _, config = read_kind(directory / CONFIG)
    weights = Shards(directory)
    model = fitting(directory, config, weights.header)
    model.load_state_dict(of_one_type({name: weights.read(name) for name in weights.header}), assign=True)
    return model


def read_kind(path: Path) -> tuple[Kind, Any]:
    """The kind of model that a config.json describes, and its config; anything else is refused with advice."""
    if not path.is_file():
        known = advice(path.parent)
        raise DataError(
            known or f"{path} is missing; a model directory has {CONFIG} and {WEIGHTS}, as save() writes them"
        )
    try:
        data = jsons.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); was it cut short?") from error
    foreign = advice(path.parent)
    if foreign is not None:
        raise DataError(foreign)
    name = kind_named(data)
    if name is None:
        raise DataError(
            f'{path} does not say which model it describes; keysift writes "model_type": "{MODEL_TYPE}multiscreen"'
        )
    kind = KINDS.find(name)
    return kind, configs.from_dict(kind.config, own_fields(data))


def own_fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """What describes the model itself; a field that nobody knows is among it, and is refused by its config."""
    about = {"model", "model_type", *HOST_FIELDS}
    return by_todays_names({name: value for name, value in data.items() if name not in about})


def fitting(
    directory: Path, config: Any, header: Mapping[str, Entry], *, spelled: Callable[[str], str] = str
) -> LanguageModel:
    """The model the config describes, without memory, if the weights fit it; nothing is built of sizes they deny.

    A message names a weight as `spelled` does: in the directory it may have another name.
    """
    elements = sum(math.prod(entry.shape) for entry in header.values())
    sizes = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "context"}
    too_large = next((name for name, size in sizes.items() if type(size) is int and size > max(elements, 1)), None)
    if too_large is None and sizes["depth"] > len(header):
        too_large = "depth"
    if too_large is not None:
        raise DataError(
            f"{directory}: {CONFIG} says {too_large} {sizes[too_large]}, more than {WEIGHTS} can hold "
            f"({len(header)} tensors, {elements:,} numbers); the two are not of one model"
        )
    try:
        model = empty(config)
    except (RuntimeError, OverflowError) as error:  # torch's words for a size that no integer holds
        raise DataError(f"{directory}: {CONFIG} describes no model that can be built ({error})") from error
    _check(directory, model.state_dict(), header, spelled)
    return model


def _check(
    directory: Path, wanted: Mapping[str, Tensor], came: Mapping[str, Entry], spelled: Callable[[str], str]
) -> None:
    faults = [f"{spelled(name)} is missing" for name in wanted if name not in came]
    faults += [f"{spelled(name)} is not a weight of this model" for name in came if name not in wanted]
    faults += [
        f"{spelled(name)} is {came[name].shape}, the config says {tuple(wanted[name].shape)}"
        for name in wanted
        if name in came and came[name].shape != tuple(wanted[name].shape)
    ]
    faults += [
        f"{spelled(name)} is {entry.dtype}, weights are one of {', '.join(_FLOATS)}"
        for name, entry in came.items()
        if entry.dtype not in _FLOATS
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise DataError(f"{directory}: {WEIGHTS} does not fit {CONFIG}: {'; '.join(faults[:3])}{more}")


def of_one_type(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The widest of their types loses nothing; a layer of two types could not be computed."""
    widest = reduce(torch.promote_types, (tensor.dtype for tensor in state.values()))
    return {name: tensor.to(widest) for name, tensor in state.items()}


def from_version_1(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights whose s_r entries hold version 1's number s1 (r1 = exp(s1) + 1, arXiv:2604.01178v1), as version 3's.

    1 / (exp(s1) + 1) = sigmoid(-s1), so s_r = -s1. Version 1 always expands windows at inference: pass
    Inference(expand_windows=training length) for the same function.
    """
    return {name: -tensor if name.rpartition(".")[2] == "s_r" else tensor for name, tensor in state.items()}
