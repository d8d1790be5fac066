"""Starting from the weights of another model: a run, a saved or an imported one.

What is the same in both is taken over. Where a layer gets another mechanism its new scalars begin at their own initial
values; every other difference is refused. The run remembers what it came from, with a hash.
"""

import hashlib
from pathlib import Path
from typing import cast

import torch

from keysift.core.config import config, from_dict, to_dict
from keysift.core.errors import ConfigError, DataError
from keysift.data.symbols import Symbols
from keysift.data.tokenizer import Tokenizer, load_tokenizer
from keysift.models.kinds import kind_of
from keysift.models.language import LanguageModel
from keysift.models.save import load
from keysift.models.tensor_files import Shards
from keysift.nn.scalars import Scalars
from keysift.train.config import TrainConfig


@config
class Origin:
    """What a run began with."""

    path: str
    sha256: str
    """Of the weights."""
    vocab_size: int
    """Of the model, which may be larger than its tokenizer's."""


def starting_from(path: Path) -> TrainConfig:
    """Its model, tokenizer and training length, as settings to change."""
    model = load(path)
    kind = kind_of(model)
    told = to_dict(model.config)
    known = {name: told[name] for name in told if name not in ("vocab_size", "context")}
    context = model.config.context
    return TrainConfig(
        model=from_dict(kind.arch, known),
        init=str(path),
        tokenizer=str(path),
        context=context,
        batch_tokens=max(TrainConfig.batch_tokens, context),
    )


def find_origin(config: TrainConfig, tokenizer: Tokenizer) -> Origin | None:
    """Where the weights come from, if another model's tokens are the same as this run's."""
    if config.init is None:
        return None
    path = Path(config.init)
    vocab_size = load(path).config.vocab_size
    own = load_tokenizer(path)
    if own.hash != tokenizer.hash:
        raise ConfigError(
            f"{config.init} reads tokens of {own.name}, and {config.data} would be read as {tokenizer.name}; "
            f"{_remedy(own, tokenizer)}, or start without --init"
        )
    return Origin(path=config.init, sha256=_sha256(path), vocab_size=vocab_size)


def _remedy(own: Tokenizer, tokenizer: Tokenizer) -> str:
    """A task brings its own tokens, so there the data is to be changed."""
    if not isinstance(tokenizer, Symbols):
        return "leave --tokenizer out"
    return f"say --data {own.name}" if isinstance(own, Symbols) else "say --data with a text"


def adopt(model: LanguageModel, origin: Origin) -> list[str]:
    """Give the model the weights of its origin; returns the parameters that keep their initial values."""
    path = Path(origin.path)
    source = load(path)
    if _sha256(path) != origin.sha256:
        raise DataError(f"{path} has changed since the run began, before its first checkpoint; start it again")
    if kind_of(source) is not kind_of(model):
        raise ConfigError(f"{path} is a {kind_of(source).name}, this is a {kind_of(model).name}; drop --arch")
    changed = _changed(model, source)
    theirs = dict(source.named_parameters())
    fresh, faults = [], []
    for name, parameter in model.named_parameters():
        if name.startswith(changed):
            fresh.append(name)
        elif name not in theirs:
            faults.append(f"{name} is new")
        elif theirs[name].shape != parameter.shape:
            faults.append(f"{name} is {tuple(theirs[name].shape)} there and {tuple(parameter.shape)} here")
        else:
            with torch.no_grad():
                parameter.copy_(theirs[name])
    known = dict(model.named_parameters())
    faults += [f"{name} would be lost" for name in theirs if name not in known and not name.startswith(changed)]
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise ConfigError(
            f"{path} is another model: {'; '.join(faults[:3])}{more}; of its model only the mechanism, the positions "
            f"and the context may change"
        )
    return fresh


def _sha256(path: Path) -> str:
    """Of the weights, one file after the other."""
    found = hashlib.sha256()
    for name in Shards(path).files:
        with name.open("rb") as file:
            while piece := file.read(2**20):
                found.update(piece)
    return found.hexdigest()


def _changed(model: LanguageModel, source: LanguageModel) -> tuple[str, ...]:
    """How the names of scalars begin in layers that get another mechanism."""
    places = [name for name, module in model.named_modules() if isinstance(module, Scalars)]
    pairs = zip(places, model.layers, source.layers, strict=False)
    return tuple(f"{name}." for name, ours, theirs in pairs if _mechanism(ours) != _mechanism(theirs))


def _mechanism(layer: torch.nn.Module) -> str:
    return cast(Scalars, layer.scalars).mechanism.name
