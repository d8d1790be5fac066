"""The models of `keysift bench models`: Multiscreens, and Transformers of the same size.

The Transformer runs as it is, under torch.compile, and with sliding windows: what a user could pick instead.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from keysift.bench.collector import Collector
from keysift.bench.model_cases import EXPANDED, INFINITE_SHARE, SLIDING_WINDOW, matching_transformer, multiscreen
from keysift.bench.training_step import random_tokens
from keysift.models.language_model import LanguageModel
from keysift.nn.inference import Inference


@dataclass(frozen=True)
class ModelCase:
    """A model, its inference options, and whether it attends to every key by softmax."""

    name: str
    model: LanguageModel
    inference: Inference | None = None
    full_softmax: bool = False
    compiled: bool = False

    def last_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad() if self.compiled else torch.inference_mode():
            hidden = self.forward(tokens) if self.compiled else self.model.hidden(tokens, inference=self.inference)
            return self.model.readout(hidden[:, -1:])

    @cached_property
    def forward(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The compiled forward pass. Sizes are dynamic, so that one graph serves every length."""
        return torch.compile(self.model.hidden, dynamic=True)


def build_cases(psi: int) -> dict[str, ModelCase]:
    """The models by short names.

    Those with infinite tiles use window expansion: a window longer than the training length counts as infinite.
    """
    plain = multiscreen(psi)
    transformer = matching_transformer(plain)
    share = f"{INFINITE_SHARE:.1%} of its tiles infinite"
    return {
        "plain": ModelCase("Multiscreen, windows as initialised", plain),
        "infinite": ModelCase(f"Multiscreen, {share}", multiscreen(psi, infinite=INFINITE_SHARE), EXPANDED),
        "open": ModelCase(
            f"Multiscreen, {share}, r = 0.92", multiscreen(psi, infinite=INFINITE_SHARE, accept=0.92), EXPANDED
        ),
        "transformer": ModelCase("Transformer", transformer, full_softmax=True),
        "compiled": ModelCase("Transformer, torch.compile", transformer, full_softmax=True, compiled=True),
        "windowed": ModelCase(
            f"Transformer, windows of {SLIDING_WINDOW}", matching_transformer(plain, window=SLIDING_WINDOW)
        ),
    }


def without_compiler(results: Collector, cases: dict[str, ModelCase]) -> dict[str, ModelCase]:
    """The cases that run here. A machine without a C++ compiler cannot compile: the reason is noted."""
    reason = results.measure_once("compiling the Transformer", lambda: why_not_compiled(cases["compiled"]))
    if reason is None:
        return cases
    results.notes.append(f"{cases['compiled'].name}: not timed, torch.compile failed ({reason})")
    return {key: case for key, case in cases.items() if key != "compiled"}


def why_not_compiled(case: ModelCase) -> str | None:
    """The first line of the error of torch.compile for this model, or None if it works and agrees with the model."""
    text = random_tokens(1, 65)
    try:
        compiled = case.last_logits(text)
    except Exception as error:  # inductor raises many classes without a working compiler
        return next(iter(str(error).strip().splitlines()), type(error).__name__)
    torch.testing.assert_close(compiled, replace(case, compiled=False).last_logits(text), rtol=1e-3, atol=1e-3)
    return None
