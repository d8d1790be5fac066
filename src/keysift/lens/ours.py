"""A keysift model as a subject of the lens: every layer's call is shown to the visitor before the kernels get it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from keysift.core import jsons
from keysift.data.symbols import Symbols
from keysift.data.tokenizer import Tokenizer, load_tokenizer
from keysift.kernels.call import Call
from keysift.lens.reading import Reading
from keysift.lens.record import About
from keysift.lens.subject import NOTHING, Visit, next_tokens, pad
from keysift.models.foreign import kind_named
from keysift.models.kinds import KINDS
from keysift.models.language import LanguageModel, count
from keysift.models.save import CONFIG, load
from keysift.nn.scalars import Scalars
from keysift.nn.tap import call_taps, taps

_OUTPUTS = (".attention.output", ".tiles.screened")


class Ours:
    """`model` is put into evaluation mode."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, name: str) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        scalars = [cast(Scalars, layer.scalars) for layer in model.layers]
        self.about = About(
            name=name,
            kind="keysift",
            family=type(model).__name__.lower(),
            mechanisms=tuple(own.mechanism.name for own in scalars),
            heads=tuple(own.sizes["H"] for own in scalars),
            context=None,  # RoPE and windows have no last position
            parameters=count(model),
            vocabulary=model.config.vocab_size,
        )

    def encode(self, text: str) -> list[int]:
        return [*self.tokenizer.begin, *self.tokenizer.encode(text)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([token]) for token in ids]

    def targets(self, ids: Sequence[int]) -> list[int]:
        asked = self.tokenizer.answers(ids) if isinstance(self.tokenizer, Symbols) else None
        return next_tokens(ids) if asked is None else [NOTHING if answer is None else answer for answer in asked]

    @torch.no_grad()
    def run(self, texts: Sequence[Sequence[int]], visit: Visit) -> list[Tensor]:
        tokens, keep, padding = pad(texts)
        changed: dict[int, Tensor] = {}
        outputs = [tap for name, tap in taps(self.model).items() if name.endswith(_OUTPUTS)]
        with ExitStack() as taken:
            for layer, (call, output) in enumerate(zip(call_taps(self.model), outputs, strict=True)):
                taken.enter_context(call.listening(_show(layer, padding, visit, changed)))
                taken.enter_context(output.editing(_replace(layer, changed)))
            logits = self.model(tokens, keep=keep if any(padding) else None)
        return [logits[row, lead:] for row, lead in enumerate(padding)]


def _show(layer: int, padding: tuple[int, ...], visit: Visit, changed: dict[int, Tensor]) -> Callable[[Call], None]:
    def listen(call: Call) -> None:
        found = visit(Reading(layer, call, padding))
        if found is not None:
            changed[layer] = found

    return listen


def _replace(layer: int, changed: dict[int, Tensor]) -> Callable[[Tensor], Tensor]:
    def apply(output: Tensor) -> Tensor:
        return changed.pop(layer, output)

    return apply


def holds_ours(path: Path) -> bool:
    """Whether a directory's config.json names a model of keysift."""
    try:
        says = jsons.loads((path / CONFIG).read_text())
    except (OSError, ValueError):
        return False
    return kind_named(says) in KINDS


def open_ours(path: Path) -> Ours:
    return Ours(load(path), load_tokenizer(path), path.name)
