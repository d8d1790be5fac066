"""Model to evaluate: opened from a run, a checkpoint or a saved model, or built untrained from a preset."""

from dataclasses import dataclass
from pathlib import Path

import torch

from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.bytes import Bytes
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.model_type import check_model_or_preset
from keysift.models.presets import CONTEXT, PRESETS
from keysift.models.registry import build, configure, kind_of
from keysift.models.text_model import open as open_model
from keysift.records.evaluation import Subject
from keysift.runs.layout import is_run_directory, saved_step
from keysift.runs.summary import summary


@dataclass(frozen=True)
class MeasuredModel:
    """A model in eval mode with its tokenizer and its description in records."""

    model: LanguageModel
    tokenizer: Tokenizer
    subject: Subject
    trained_on: str = ""
    """Data source of its run; empty if unknown."""


def open_measured_model(name: str, *, seed: int = 0) -> MeasuredModel:
    """Open the model of a directory, or build a preset with random weights and the byte tokenizer."""
    path = Path(name)
    if path.is_dir():
        text_model, is_run = open_model(path), is_run_directory(path)
        return MeasuredModel(
            text_model.model,
            text_model.tokenizer,
            describe(text_model.model, str(path), step=saved_step(path) if is_run else None),
            summary(path).data if is_run else "",
        )
    check_model_or_preset(name)
    config = configure(PRESETS.find(name).arch, vocab_size=Bytes.vocab_size, context=CONTEXT)
    model = build(config, torch.Generator().manual_seed(seed)).eval()
    return MeasuredModel(model, Bytes(), describe(model, f"{name}, untrained", step=0))


def describe(model: LanguageModel, name: str, *, step: int | None) -> Subject:
    """The model's entry in a record."""
    return Subject(
        name=name,
        kind=kind_of(model).name,
        parameters=count_parameters(model),
        trained_length=model.config.context,
        step=step,
    )
