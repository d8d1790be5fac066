"""The initial model of a run: its sizes, and weights taken from another model (--init).

The other model is a run, a saved model or an imported one. Weights with the same name and shape are copied. In a layer
that gets another mechanism, the scalars start at their own initial values. Every other difference is refused. The run
stores the path and the hash of the weights it started from.
"""

import hashlib
from pathlib import Path
from typing import cast

import torch

from keysift.core.config import config, from_dict, to_dict
from keysift.core.errors import ConfigError, DataError
from keysift.core.listing import first_three
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.load import load_tokenizer
from keysift.data.tokenizers.symbols import Symbols
from keysift.models.language_model import LanguageModel
from keysift.models.registry import ModelConfig, configure, kind_of
from keysift.models.save import load
from keysift.models.tensor_files import Shards
from keysift.nn.scalars import MechanismScalars
from keysift.train.config import TrainConfig


@config
class Origin:
    """The model whose weights a run started from."""

    path: str
    sha256: str
    """Hash of the weights."""
    vocab_size: int
    """Vocabulary of the model, which may be larger than its tokenizer's."""


def model_config(config: TrainConfig, vocab_size: int) -> ModelConfig:
    return configure(config.model, vocab_size=vocab_size, context=config.context)


def config_from_model(path: Path) -> TrainConfig:
    """A config with the sizes, tokenizer and training length of a saved model."""
    model = load(path)
    kind = kind_of(model)
    sizes = {name: value for name, value in to_dict(model.config).items() if name not in ("vocab_size", "context")}
    context = model.config.context
    return TrainConfig(
        model=from_dict(kind.arch, sizes),
        init=str(path),
        tokenizer=str(path),
        context=context,
        batch_tokens=max(TrainConfig.batch_tokens, context),
    )


def find_origin(config: TrainConfig, tokenizer: Tokenizer) -> Origin | None:
    """The model that `config.init` names; None if there is none. Its tokenizer must be the one of this run."""
    if config.init is None:
        return None
    path = Path(config.init)
    vocab_size = load(path).config.vocab_size
    own = load_tokenizer(path)
    if own.hash != tokenizer.hash:
        raise ConfigError(
            f"{config.init} uses the tokenizer {own.name}, but {config.data} would be read as {tokenizer.name}; "
            f"{_remedy(own, tokenizer)}, or start without --init"
        )
    return Origin(path=config.init, sha256=_sha256(path), vocab_size=vocab_size)


def _remedy(own: Tokenizer, tokenizer: Tokenizer) -> str:
    """A task has its own tokenizer, so there the data must change."""
    if not isinstance(tokenizer, Symbols):
        return "drop --tokenizer"
    return f"use --data {own.name}" if isinstance(own, Symbols) else "use --data with a text"


def copy_weights(model: LanguageModel, origin: Origin) -> list[str]:
    """Copy the weights of the origin into the model; returns the parameters that keep their initial values."""
    path = Path(origin.path)
    source = load(path)
    if _sha256(path) != origin.sha256:
        raise DataError(f"{path} has changed since the run began, before its first checkpoint; start it again")
    if kind_of(source) is not kind_of(model):
        raise ConfigError(f"{path} is a {kind_of(source).name}, this is a {kind_of(model).name}; drop --arch")
    replaced = _replaced_scalars(model, source)
    theirs = dict(source.named_parameters())
    fresh, differences = [], []
    for name, parameter in model.named_parameters():
        if name.startswith(replaced):
            fresh.append(name)
        elif name not in theirs:
            differences.append(f"{name} is new")
        elif theirs[name].shape != parameter.shape:
            differences.append(f"{name} is {tuple(theirs[name].shape)} there and {tuple(parameter.shape)} here")
        else:
            with torch.no_grad():
                parameter.copy_(theirs[name])
    known = dict(model.named_parameters())
    differences += [f"{name} would be lost" for name in theirs if name not in known and not name.startswith(replaced)]
    if differences:
        raise ConfigError(
            f"{path} is another model: {first_three(differences)}; only the mechanism, the positions and the "
            f"context of the model may change"
        )
    return fresh


def _sha256(path: Path) -> str:
    """Hash of all weight files in order."""
    digest = hashlib.sha256()
    for name in Shards(path).files:
        with name.open("rb") as file:
            while piece := file.read(2**20):
                digest.update(piece)
    return digest.hexdigest()


def _replaced_scalars(model: LanguageModel, source: LanguageModel) -> tuple[str, ...]:
    """Name prefixes of the scalars in layers that get another mechanism."""
    places = [name for name, module in model.named_modules() if isinstance(module, MechanismScalars)]
    pairs = zip(places, model.layers, source.layers, strict=False)
    return tuple(f"{name}." for name, ours, theirs in pairs if _mechanism(ours) != _mechanism(theirs))


def _mechanism(layer: torch.nn.Module) -> str:
    return cast(MechanismScalars, layer.scalars).mechanism.name
