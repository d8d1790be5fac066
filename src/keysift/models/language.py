"""What every language model here can do: logits for tokens, with or without a cache of the past.

Letters: B batch, T tokens, D model width, N vocabulary.
"""

import itertools
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from keysift.core import shapes
from keysift.core.errors import RangeError, ShapeError, UnsupportedError
from keysift.mechanisms.spec import Promise
from keysift.nn.cache import Cache, Span
from keysift.nn.inference import Inference
from keysift.nn.rotary import Rotary
from keysift.nn.scalars import Scalars
from keysift.nn.store import Store


class LanguageModel(nn.Module, ABC):
    """Abstract: a model gives `through` (tokens to the last residual stream) and `readout` (stream to logits)."""

    config: Any
    layers: nn.ModuleList

    @abstractmethod
    def through(self, tokens_BT: Tensor, span: Span, stores: list[Store | None]) -> Tensor: ...

    @abstractmethod
    def readout(self, x_BTD: Tensor) -> Tensor: ...

    def forward(
        self,
        tokens: Tensor,
        *,
        keep: Tensor | None = None,
        start: int = 0,
        cache: Cache | None = None,
        inference: Inference | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Logits B T N for int64 tokens B T.

        keep        boolean B T, False for padding: such a token is not seen, not stored and takes no position
        start       the position of each row's first token; with a cache it is the cache's
        cache       what came before, from `model.cache(batch)`; these tokens are added to it
        inference   choices such as window expansion; with a cache they are the cache's
        documents   int64 B T, rising along a row: each document is read as if it stood alone, from position 0
        """
        x_BTD = self.hidden(tokens, keep=keep, start=start, cache=cache, inference=inference, documents=documents)
        return self.readout(x_BTD)

    def hidden(
        self,
        tokens: Tensor,
        *,
        keep: Tensor | None = None,
        start: int = 0,
        cache: Cache | None = None,
        inference: Inference | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """The last residual stream B T D, for callers that read out only some positions."""
        self._check(tokens, keep)
        if documents is not None:
            if keep is not None or cache is not None or start != 0 or documents.shape != tokens.shape:
                raise UnsupportedError(
                    "documents are packed rows for training, one number for each token; leave keep, cache and start out"
                )
            chosen = self._can(inference or Inference())
            # Looking at values would break a compiled graph.
            lengths = None if torch.compiler.is_compiling() else _lengths(documents)
            span = Span(_within(documents), None, chosen, documents_BT=documents, lengths=lengths)
            return self.through(tokens, span, [None] * len(self.layers))
        if cache is None:
            chosen = self._can(inference or Inference())
            counted = keep is None and start == 0
            span = Span(_positions(tokens, keep, start), keep, chosen, counted=counted)
            return self.through(tokens, span, [None] * len(self.layers))
        if start != 0 or (inference is not None and self._can(inference) != cache.inference):
            raise UnsupportedError(
                "a cache was made for one start and one set of inference choices; "
                "leave start and inference out, or pass them to model.cache(...)"
            )
        span = cache.place(tokens, keep)
        x_BTD = self.through(tokens, span, list(cache.stores))
        cache.advance(span)
        return x_BTD

    def cache(self, batch: int, *, start: int = 0, spare: int = 0, inference: Inference | None = None) -> Cache:
        """An empty cache for `batch` rows. `spare` more entries per finite window let `crop` go that far back."""
        chosen = self._can(inference or Inference())
        stores = []
        for scalars in self._scalars():
            if Promise.CAUSAL not in scalars.mechanism.holds:
                raise UnsupportedError(
                    f"{scalars.mechanism.name} does not promise that {Promise.CAUSAL.value}, "
                    f"so nothing can be remembered for it; run the whole text with cache=None"
                )
            stores.append(Store(scalars.reach(chosen), batch, spare))
        return Cache(stores, batch, start=start, inference=chosen, device=next(self.parameters()).device)

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

    def _check(self, tokens: Tensor, keep: Tensor | None) -> None:
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


def _positions(tokens: Tensor, keep: Tensor | None, start: int) -> Tensor:
    if keep is None:
        return start + torch.arange(tokens.shape[1], device=tokens.device)[None]
    return start + keep.cumsum(1) - 1


def _within(documents_BT: Tensor) -> Tensor:
    """Positions counted from the first token of each document."""
    at_BT = torch.arange(documents_BT.shape[1], device=documents_BT.device).expand_as(documents_BT)
    first_BT: Tensor = torch.where(_begins(documents_BT), at_BT, 0).cummax(1).values
    return at_BT - first_BT


def _lengths(documents_BT: Tensor) -> list[int]:
    starts = _begins(documents_BT).flatten().nonzero().flatten().tolist()
    return [after - start for start, after in itertools.pairwise([*starts, documents_BT.numel()])]


def _begins(documents_BT: Tensor) -> Tensor:
    begins = torch.ones_like(documents_BT, dtype=torch.bool)
    begins[:, 1:] = documents_BT[:, 1:] != documents_BT[:, :-1]
    return begins


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
