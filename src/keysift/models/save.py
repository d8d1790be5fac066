"""A model as a directory: config.json (what it is) and model.safetensors (its weights). No pickle.

`save` writes a whole new directory beside the old one and swaps them by renaming, so a crash leaves either the old
model or the new one. Other files of the directory (a tokenizer, a log) come along as hard links.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from keysift.core import config as configs
from keysift.core.disk import sync
from keysift.core.errors import DataError
from keysift.models.kinds import KINDS, Kind, kind_of
from keysift.models.language import LanguageModel

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save(model: LanguageModel, directory: Path | str) -> None:
    """Write the model; an existing directory keeps its other files and is replaced in one step."""
    directory = Path(directory).absolute()
    if directory.exists() and not directory.is_dir():
        raise DataError(f"{directory} is a file; a model is saved as a directory, choose another name")
    kind_of(model)
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        if directory.exists():
            shutil.copytree(directory, fresh, copy_function=_link, symlinks=True, dirs_exist_ok=True)
        else:
            fresh.chmod(0o755)
        # The links share their bytes with the old files: they are removed, not written over.
        for name in (CONFIG, WEIGHTS):
            (fresh / name).unlink(missing_ok=True)
        write_files(model, fresh)
        for name in (CONFIG, WEIGHTS):
            sync(fresh / name)
        sync(fresh)
        _swap(fresh, directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_files(model: LanguageModel, folder: Path) -> None:
    """config.json and the weights, into a folder that somebody else makes whole."""
    told = {"model": kind_of(model).name, **configs.to_dict(model.config)}
    (folder / CONFIG).write_text(json.dumps(told, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / WEIGHTS)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _swap(fresh: Path, directory: Path) -> None:
    """Put `fresh` where `directory` is; what was there goes back if that fails."""
    if not directory.exists():
        fresh.rename(directory)
    else:
        old = fresh.with_name(f"{fresh.name}.old")
        directory.rename(old)
        try:
            fresh.rename(directory)
        except BaseException:
            old.rename(directory)
            raise
        shutil.rmtree(old)
    sync(directory.parent)


def load(directory: Path | str) -> LanguageModel:
    """The saved model, in the types it was saved in; anything wrong with the files is one clear error."""
    directory = Path(directory)
    kind, config = _read_config(directory / CONFIG)
    state = _read_weights(directory / WEIGHTS)
    model = kind.model(config)
    _check(directory, model.state_dict(), state)
    model.load_state_dict(state, assign=True)
    return model


def _read_config(path: Path) -> tuple[Kind, Any]:
    if not path.is_file():
        raise DataError(f"{path} is missing; a model directory has {CONFIG} and {WEIGHTS}, as save() writes them")
    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not JSON ({error}); was it cut short?") from error
    if not isinstance(data, dict) or not isinstance(data.get("model"), str):
        raise DataError(f'{path} does not say which model it describes; keysift writes "model": "multiscreen"')
    kind = KINDS.find(data.pop("model"))
    return kind, configs.from_dict(kind.config, data)


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise DataError(f"{path} is missing; a model directory has {CONFIG} and {WEIGHTS}, as save() writes them")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DataError(f"{path} is not a whole safetensors file ({error}); copy it again from its source") from error


def _check(directory: Path, wanted: Mapping[str, Tensor], came: Mapping[str, Tensor]) -> None:
    faults = [f"{name} is missing" for name in wanted if name not in came]
    faults += [f"{name} is not a weight of this model" for name in came if name not in wanted]
    faults += [
        f"{name} is {tuple(came[name].shape)}, the config says {tuple(wanted[name].shape)}"
        for name in wanted
        if name in came and came[name].shape != wanted[name].shape
    ]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise DataError(f"{directory}: {WEIGHTS} does not fit {CONFIG}: {'; '.join(faults[:3])}{more}")


def from_version_1(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights whose s_r entries hold version 1's number s1 (r1 = exp(s1) + 1, arXiv:2604.01178v1), as version 3's.

    1 / (exp(s1) + 1) = sigmoid(-s1), so s_r = -s1. Version 1 always expands windows at inference: pass
    Inference(expand_windows=training length) for the same function.
    """
    return {name: -tensor if name.rpartition(".")[2] == "s_r" else tensor for name, tensor in state.items()}
