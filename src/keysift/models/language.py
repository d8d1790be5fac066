"""What every language model here can do: logits for tokens, with or without a cache of the past.

Letters: B batch, T tokens, D model width, N vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.kernels.positions import Positions
from keysift.mechanisms.spec import Promise
from keysift.nn.cache import Cache, Reading
from keysift.nn.inference import Inference
from keysift.nn.rotary import Rotary
from keysift.nn.scalars import Scalars
from keysift.nn.store import Store

Run = Callable[[nn.Module, Tensor, Reading, Store | None], Tensor]


class Options(TypedDict, total=False):
    """What a model takes besides tokens; `hidden` says what each one means."""

    positions: Positions | None
    keep: Tensor | None
    cache: Cache | None
    inference: Inference | None


class LanguageModel(nn.Module, ABC):
    """Abstract: a model has an embedding and layers, and says how the last residual stream becomes logits."""

    config: Any
    embedding: nn.Module
    layers: nn.ModuleList

    @abstractmethod
    def readout(self, x_BTD: Tensor) -> Tensor: ...

    def forward(self, tokens: Tensor, **options: Unpack[Options]) -> Tensor:
        """Logits B T N for int64 tokens B T, with the options of `hidden`."""
        return self.readout(self.hidden(tokens, **options))

    def hidden(
        self,
        tokens: Tensor,
        *,
        positions: Positions | None = None,
        keep: Tensor | None = None,
        cache: Cache | None = None,
        inference: Inference | None = None,
    ) -> Tensor:
        """The last residual stream B T D, for callers that read out only some positions.

        positions   where the tokens stand, if not at 0, 1, 2, ...: packed documents, padding, another start
        keep        boolean B T, False for padding: such a token is not seen, not stored and takes no position
        cache       what came before, from `model.cache(batch)`; these tokens are added to it
        inference   choices such as window expansion; with a cache they are the cache's
        """
        self.check(tokens, keep)
        reading = self.reading(tokens, positions=positions, keep=keep, cache=cache, inference=inference)
        return self.through(self.embedding(tokens), reading, cache)

    def reading(
        self,
        tokens: Tensor,
        *,
        positions: Positions | None = None,
        keep: Tensor | None = None,
        cache: Cache | None = None,
        inference: Inference | None = None,
    ) -> Reading:
        """Where tokens stand and what was chosen, with the options of `hidden`; of the tokens only the shape counts."""
        if positions is not None and (keep is not None or cache is not None):
            raise UnsupportedError(
                "positions say already who takes part, and a cache counts on from its own; "
                "leave keep and cache out, or positions"
            )
        if cache is None:
            return Reading(_placed(tokens, positions, keep), self._can(inference or Inference()))
        if inference not in (None, cache.inference):
            raise UnsupportedError(
                "a cache was made for one set of inference choices; leave inference out, or pass it to model.cache(...)"
            )
        return cache.place(tokens, keep)

    def through(self, x_BTD: Tensor, reading: Reading, cache: Cache | None = None, run: Run | None = None) -> Tensor:
        """Embedded tokens through the layers, and into the cache; `run` calls a layer, for those who want more of it
        than its output."""
        stores = [None] * len(self.layers) if cache is None else cache.stores
        for layer, store in zip(self.layers, stores, strict=True):
            x_BTD = layer(x_BTD, reading, store) if run is None else run(layer, x_BTD, reading, store)
        if cache is not None:
            cache.advance(reading)
        return x_BTD

    def cache(self, batch: int, *, start: int = 0, spare: int = 0, inference: Inference | None = None) -> Cache:
        """An empty cache for `batch` rows. `spare` more entries per finite window let `crop` go that far back."""
        if batch < 1 or spare < 0:
            raise RangeError(f"a cache has at least one row and no fewer than 0 spare entries, got {batch} and {spare}")
        chosen = self._can(inference or Inference())
        stores = []
        for scalars in self._scalars():
            if Promise.CAUSAL not in scalars.mechanism.holds:
                raise UnsupportedError(
                    f"{scalars.mechanism.name} does not promise that {Promise.CAUSAL.value}, "
                    f"so nothing can be remembered for it; run the whole text with cache=None"
                )
            stores.append(Store(scalars.reach(chosen), batch, spare))
        return Cache(stores, batch, start=start, inference=chosen)

    def scalars(self) -> list[dict[str, Tensor]]:
        """The scalars of each layer's mechanism, as it uses them: in a Multiscreen `model.scalars()[3]["window"]` and
        `["acceptance"]` hold one number for each tile. Scalars computed from the tokens are left out."""
        return [own.stored(Inference()) for own in self._scalars()]

    def _scalars(self) -> list[Scalars]:
        return [cast(Scalars, layer.scalars) for layer in self.layers]

    def _can(self, inference: Inference) -> Inference:
        """The choices with the training length as a number, if this model can follow them."""
        if inference.expand_windows is not False and not any(s.looks_back for s in self._scalars()):
            raise UnsupportedError("no layer of this model has a window; leave expand_windows out")
        if inference.expand_windows is True:
            trained = getattr(self.config, "context", None)
            if trained is None:
                raise UnsupportedError(
                    "this model does not say how long the texts were it was trained on; give expand_windows that number"
                )
            inference = replace(inference, expand_windows=trained)
        if inference.rope_factor != 1.0 and not any(isinstance(module, Rotary) for module in self.modules()):
            raise UnsupportedError("this model has no RoPE to scale; leave rope_factor at 1.0")
        return inference

    def check(self, tokens: Tensor, keep: Tensor | None) -> None:
        shapes.rank("tokens", tokens, "BT")
        shapes.not_empty("tokens", "position", tokens.shape[1])
        if tokens.dtype != torch.int64:
            raise ShapeError(f"tokens must be int64, got {tokens.dtype}; use tokens.long()")
        if keep is not None and (keep.dtype != torch.bool or keep.shape != tokens.shape):
            raise ShapeError(
                f"keep must be boolean and shaped like tokens ({shapes.show(tokens)}), "
                f"got {keep.dtype} {shapes.show(keep)}"
            )
        if torch.compiler.is_compiling() or not tokens.numel():
            return
        low, high = (int(bound) for bound in tokens.aminmax())
        if low < 0 or high >= self.config.vocab_size:
            raise RangeError(
                f"tokens must lie in 0..{self.config.vocab_size - 1}, got {low if low < 0 else high}; "
                f"is this the tokenizer the model was trained with?"
            )


def _placed(tokens: Tensor, positions: Positions | None, keep: Tensor | None) -> Positions:
    if keep is not None:
        return Positions.masked(keep)
    batch, length = tokens.shape
    if positions is None:
        return Positions.counted(length)
    positions.check({"B": batch, "H": 1, "T": length, "S": length})
    return positions


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
