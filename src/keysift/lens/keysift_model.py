"""A keysift model for the lens: the inputs of every attention layer are shown to the visitor."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from keysift.core import safe_json
from keysift.data.batches import IGNORE
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.load import load_tokenizer
from keysift.data.tokenizers.symbols import Symbols
from keysift.kernels.call import Call
from keysift.lens.layer_view import LayerView
from keysift.lens.model import Visit, ignore_layer, next_tokens, pad, token_pieces
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.models.model_type import CONFIG, keysift_kind
from keysift.models.registry import MODEL_KINDS
from keysift.models.save import load
from keysift.nn.scalars import MechanismScalars
from keysift.nn.tap import call_taps, edit, taps, trace
from keysift.records.lens import ModelInfo

# Taps after the kernels, where a visitor's tensor replaces the output of a layer's attention.
_OUTPUTS = (".attention.output", ".tiles.screened")


class KeysiftModel:
    """A LensModel. Puts `model` into evaluation mode."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, name: str) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        scalars = [cast(MechanismScalars, layer.scalars) for layer in model.layers]
        self.info = ModelInfo(
            name=name,
            kind="keysift",
            family=type(model).__name__.lower(),
            mechanisms=tuple(layer_scalars.mechanism.name for layer_scalars in scalars),
            heads=tuple(layer_scalars.sizes["H"] for layer_scalars in scalars),
            context=None,  # RoPE and windows have no last position
            parameters=count_parameters(model),
            vocabulary=model.config.vocab_size,
        )

    def encode(self, text: str) -> list[int]:
        return [*self.tokenizer.prefix_ids, *self.tokenizer.encode(text)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return token_pieces(self.tokenizer.decode, ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def targets(self, ids: Sequence[int]) -> list[int]:
        answers = self.tokenizer.answers(ids) if isinstance(self.tokenizer, Symbols) else None
        if answers is None:
            return next_tokens(ids)
        return [IGNORE if answer is None else answer for answer in answers]

    def trace(self, *patterns: str) -> AbstractContextManager[dict[str, Tensor]]:
        return trace(self.model, *patterns)

    def edit(self, changes: Mapping[str, Callable[[Tensor], Tensor]]) -> AbstractContextManager[None]:
        return edit(self.model, changes)

    @torch.no_grad()
    def run(self, texts: Sequence[Sequence[int]], visit: Visit) -> list[Tensor]:
        tokens, keep, padding = pad(texts)
        replacements: dict[int, Tensor] = {}
        outputs = [tap for name, tap in taps(self.model).items() if name.endswith(_OUTPUTS)]
        with ExitStack() as hooks:
            watched = () if visit is ignore_layer else zip(call_taps(self.model), outputs, strict=True)
            for layer, (call, output) in enumerate(watched):
                hooks.enter_context(call.listening(_call_visitor(layer, padding, visit, replacements)))
                hooks.enter_context(output.editing(_replace_output(layer, replacements)))
            logits = self.model(tokens, keep=keep if any(padding) else None)
        return [logits[row, lead:] for row, lead in enumerate(padding)]


def _call_visitor(
    layer: int, padding: tuple[int, ...], visit: Visit, replacements: dict[int, Tensor]
) -> Callable[[Call], None]:
    def listen(call: Call) -> None:
        output = visit(LayerView(layer, call, padding))
        if output is not None:
            replacements[layer] = output

    return listen


def _replace_output(layer: int, replacements: dict[int, Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(output: Tensor) -> Tensor:
        return replacements.pop(layer, output)

    return apply


def is_keysift_model(path: Path) -> bool:
    """Whether the config.json of a directory names a keysift model."""
    try:
        config = safe_json.load(path / CONFIG)
    except (OSError, ValueError):
        return False
    return keysift_kind(config) in MODEL_KINDS


def open_keysift_model(path: Path) -> KeysiftModel:
    """The model and tokenizer of a run or saved model."""
    return KeysiftModel(load(path), load_tokenizer(path), path.name)
