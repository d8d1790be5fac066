"""What is evaluated: a run, a checkpoint, any saved model, or an untrained preset, found by one word."""

from pathlib import Path

import torch

from keysift.core.errors import DataError
from keysift.core.registry import nearest
from keysift.data.tokenizer import Bytes
from keysift.evaluate.measured import Subject
from keysift.models.foreign import advice
from keysift.models.kinds import build, configure, kind_of
from keysift.models.language import LanguageModel, count
from keysift.models.presets import CONTEXT, PRESETS
from keysift.runs.layout import holds_a_run, saved
from keysift.runs.text_model import TextModel
from keysift.runs.text_model import open as open_model


def find_subject(word: str, *, seed: int = 0) -> tuple[TextModel, Subject]:
    """A directory with a model, or the name of a preset: its sizes with random weights, reading bytes."""
    path = Path(word)
    if path.is_dir():
        found = open_model(path)
        return found, describe(found.model, str(path), step=saved(path) if holds_a_run(path) else None)
    if word not in PRESETS:
        raise DataError(
            advice(path)
            or f"{word} is neither a directory with a model nor a preset; {nearest(word, PRESETS.names())}"
            f"train one with keysift train, or see keysift presets"
        )
    config = configure(PRESETS.find(word).arch, vocab_size=Bytes.vocab_size, context=CONTEXT)
    model = build(config, torch.Generator().manual_seed(seed))
    return TextModel(model, Bytes()), describe(model, f"{word}, untrained", step=0)


def describe(model: LanguageModel, name: str, *, step: int | None) -> Subject:
    return Subject(
        name=name,
        kind=kind_of(model).name,
        parameters=count(model),
        trained_length=model.config.context,
        step=step,
    )
