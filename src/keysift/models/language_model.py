"""Base class of the language models: logits for tokens, with or without a decode cache.

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
from keysift.kernels.cpu.decode import Ends
from keysift.kernels.positions import Positions
from keysift.mechanisms.spec import Promise
from keysift.nn.block import Block
from keysift.nn.cache import AttentionContext, Cache
from keysift.nn.decode_step import DecodeStep, StepHolder, declines_call
from keysift.nn.decode_weights import NotDescribed
from keysift.nn.hooks import has_hooks
from keysift.nn.inference import Inference
from keysift.nn.layer_cache import LayerCache
from keysift.nn.projection import project
from keysift.nn.rope_scaling import NONE, with_original
from keysift.nn.rotary import RotaryEmbedding
from keysift.nn.scalars import MechanismScalars
from keysift.nn.tap import Tap, TapBase
from keysift.nn.tile import Layer

Run = Callable[[nn.Module, Tensor, AttentionContext, LayerCache | None], Tensor]


class Options(TypedDict, total=False):
    """Keyword arguments of a call of a `LanguageModel`."""

    positions: Positions | None  # of the tokens, if not 0, 1, 2, ...: packed documents, padding, another start
    keep: Tensor | None  # boolean B T, False for padding, which is masked, not cached and has no position
    cache: Cache | None  # past tokens, from `model.cache(batch)`; the call appends its tokens
    inference: Inference | None  # options such as window expansion; a cache brings its own


class LanguageModel(nn.Module, ABC):
    """A model with an embedding, layers and an output head. Subclasses implement `final_hidden`."""

    config: Any
    embedding: nn.Module
    layers: nn.ModuleList
    lm_head: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.logits = Tap(), Tap()

    def embed_rows(self, rows_BTD: Tensor) -> Tensor:
        """The first residual stream B T D, from rows of the embedding, before the tap `embed`."""
        return rows_BTD

    def first_stream(self, rows_BTD: Tensor) -> Tensor:
        """The input B T D of the first layer, from rows of the embedding."""
        x_BTD: Tensor = self.embed(self.embed_rows(rows_BTD))
        return x_BTD

    @abstractmethod
    def final_hidden(self, x_BTD: Tensor) -> Tensor:
        """Input B T D of the output head, from the last residual stream."""

    def readout(self, x_BTD: Tensor) -> Tensor:
        """Logits B T N of the last residual stream."""
        logits_BTN: Tensor = self.logits(project(self.lm_head, self.final_hidden(x_BTD)))
        return logits_BTN

    def forward(self, tokens: Tensor, **options: Unpack[Options]) -> Tensor:
        """Logits B T N for int64 tokens B T.

        One token per row with a cache runs through the compiled step where it applies (`explain_decode`).
        """
        logits_B1N = self.decode(tokens, **options)
        return self.readout(self.hidden(tokens, **options)) if logits_B1N is None else logits_B1N

    def decode(self, tokens: Tensor, **options: Unpack[Options]) -> Tensor | None:
        """Logits B 1 N of one token per row from the compiled step; None where it does not apply: nothing was done."""
        for _ in range(2):
            step = self._find_step(tokens, **options)
            if isinstance(step, str):
                break
            cache = options["cache"]
            assert cache is not None
            logits_B1N = step.run([row[0] for row in tokens.tolist()], cache)
            if logits_B1N is not None:
                return logits_B1N
            # A parameter changed from which values were prepared: prepare them again.
            self._step_holder().step = None
        return None

    def _step_holder(self) -> StepHolder:
        holder: StepHolder = self.__dict__.setdefault("_steps", StepHolder())
        return holder

    def explain_decode(self, tokens: Tensor, **options: Unpack[Options]) -> str:
        """The path of a call of `forward`: "compiled", or "modules" with the reason. Computes nothing."""
        step = self._find_step(tokens, **options)
        return f"modules: {step}" if isinstance(step, str) else "compiled"

    def decode_ends(self, sources: list[Tensor]) -> Ends:
        """Embedding and readout for the compiled step. Raises NotDescribed if they have other parts.

        Parameters from which values are computed are appended to `sources`.
        """
        raise NotDescribed(f"a {type(self).__name__} does not describe its embedding and readout")

    def _find_step(self, tokens: Tensor, **options: Unpack[Options]) -> DecodeStep | str:
        """The compiled step for these arguments, or the reason why it does not apply."""
        cache = options.get("cache")
        reason = declines_call(tokens, cache)
        if reason is not None:
            return reason
        assert cache is not None
        if len(options) > 1:  # more than the cache
            others = [name for name, x in options.items() if x is not None or name not in Options.__annotations__]
            if not {"cache", "inference"}.issuperset(others) or options.get("inference") not in (None, cache.inference):
                return "it takes no positions, padding or inference options"
        step = self._step_holder().prepare(self._make_step, cache.inference)
        if isinstance(step, str):
            return step
        if torch.is_grad_enabled() and step.state.requires_grad():
            return "gradients are recorded"
        size = self.config.vocab_size
        if step.decoder.vocabulary != size or any(not 0 <= row[0] < size for row in tokens.tolist()):
            return "a token is out of range"
        return step.declines(cache) or step

    def _make_step(self, inference: Inference) -> DecodeStep:
        return DecodeStep(self, self.layers, self.decode_ends, inference)

    def hidden(self, tokens: Tensor, **options: Unpack[Options]) -> Tensor:
        """The last residual stream B T D, for callers that need logits at some positions only."""
        self.check_tokens(tokens, options.get("keep"))
        context = self.attention_context(tokens, **options)
        return self.run_layers(self.first_stream(self.embedding(tokens)), context, options.get("cache"))

    def attention_context(
        self,
        tokens: Tensor,
        *,
        positions: Positions | None = None,
        keep: Tensor | None = None,
        cache: Cache | None = None,
        inference: Inference | None = None,
    ) -> AttentionContext:
        """Context of a call with these `Options`. Only the shape of the tokens is used."""
        if positions is not None and (keep is not None or cache is not None):
            raise UnsupportedError(
                "positions already include the padding mask, and a cache has positions of its own; "
                "leave out keep and cache, or positions"
            )
        if cache is None:
            resolved = self._resolve(inference or Inference())
            return AttentionContext(_token_positions(tokens, positions, keep), resolved)
        self._check_cache(cache)
        if inference not in (None, cache.inference):
            raise UnsupportedError(
                "a cache has its own inference options; leave inference out, or pass it to model.cache(...)"
            )
        return cache.next_context(tokens, keep)

    def _check_cache(self, cache: Cache) -> None:
        """Raise UnsupportedError or ShapeError unless it is a cache with the layers of this model."""
        if not isinstance(cache, Cache):
            raise UnsupportedError(
                f"cache must come from model.cache(batch), got a {type(cache).__name__}; make one there"
            )
        if len(cache.layers) != len(self.layers):
            raise ShapeError(
                f"the cache has {len(cache.layers)} layers, the model {len(self.layers)}; "
                f"make one with model.cache(batch)"
            )

    def run_layers(
        self, x_BTD: Tensor, context: AttentionContext, cache: Cache | None = None, run: Run | None = None
    ) -> Tensor:
        """Run embedded tokens through the layers and append them to the cache.

        `run(layer, x, context, layer_cache)` replaces the plain call of a layer, e.g. to collect hidden states.
        """
        layer_caches = [None] * len(self.layers) if cache is None else cache.layers
        for layer, layer_cache in zip(self.layers, layer_caches, strict=True):
            x_BTD = layer(x_BTD, context, layer_cache) if run is None else run(layer, x_BTD, context, layer_cache)
        if cache is not None:
            cache.advance(context)
        return x_BTD

    def fill(self, tokens: Tensor, *, cache: Cache, keep: Tensor | None = None) -> None:
        """Append tokens whose logits are not needed to the cache: the last layer stores keys and values only."""
        last = self.layers[-1]
        if not isinstance(last, Layer | Block) or any(_is_observed(module) for module in last.modules()):
            self.hidden(tokens, keep=keep, cache=cache)
            return
        self.check_tokens(tokens, keep)
        context = self.attention_context(tokens, keep=keep, cache=cache)
        x_BTD = self.first_stream(self.embedding(tokens))
        for layer, layer_cache in zip(self.layers[:-1], cache.layers[:-1], strict=True):
            x_BTD = layer(x_BTD, context, layer_cache)
        last.append(x_BTD, context, cache.layers[-1])
        cache.advance(context)

    def cache(self, batch: int, *, start: int = 0, spare: int = 0, inference: Inference | None = None) -> Cache:
        """An empty cache for `batch` rows. `spare` extra entries per finite window allow `crop` to go back that far.

        A layer that shifts keys or values counts as one with a window of two tokens.
        """
        if batch < 1 or spare < 0:
            raise RangeError(f"a cache has at least 1 row and at least 0 spare entries, got {batch} and {spare}")
        resolved = self._resolve(inference or Inference())
        layer_caches = []
        for scalars in self.layer_scalars():
            if Promise.CAUSAL not in scalars.mechanism.holds:
                raise UnsupportedError(
                    f"{scalars.mechanism.name} does not promise that {Promise.CAUSAL.value}, "
                    f"so it cannot use a cache; run the whole text with cache=None"
                )
            kept = max(scalars.position.kept - start, 0)
            shifts = scalars.position.shift != "none"
            layer_caches.append(LayerCache(scalars.windows(resolved), batch, spare, kept, shifts=shifts))
        return Cache(layer_caches, batch, start=start, inference=resolved)

    def scalars(self) -> list[dict[str, Tensor]]:
        """Values of the scalars of each layer's mechanism.

        In a Multiscreen, `model.scalars()[3]["window"]` and `["acceptance"]` hold a number for each tile. Scalars that
        depend on the tokens are left out.
        """
        return [scalars.linked(Inference()) for scalars in self.layer_scalars()]

    def layer_scalars(self) -> list[MechanismScalars]:
        """The `MechanismScalars` module of each layer."""
        return [cast(MechanismScalars, layer.scalars) for layer in self.layers]

    def _resolve(self, inference: Inference) -> Inference:
        """Options with the training length filled in. Raises UnsupportedError for options this model does not have."""
        if inference.expand_windows is not False and not any(s.has_learned_window for s in self.layer_scalars()):
            raise UnsupportedError("no layer of this model has a window; leave expand_windows out")
        if inference.expand_windows is True:
            trained = getattr(self.config, "context", None)
            if trained is None:
                raise UnsupportedError(
                    "this model does not state its training length; set expand_windows to that number"
                )
            inference = replace(inference, expand_windows=trained)
        if inference.rope_factor == 1.0 and inference.rope_scaling == NONE:
            return inference
        rotary = [module for module in self.modules() if isinstance(module, RotaryEmbedding)]
        if not rotary:
            raise UnsupportedError("this model has no RoPE to scale; leave rope_factor at 1.0 and rope_scaling at none")
        if inference.rope_scaling == NONE:
            return inference
        if any(module.scaling != NONE for module in rotary):
            raise UnsupportedError(
                f"this model was trained with the RoPE scaling {rotary[0].scaling}, which rope_scaling would replace; "
                f"leave it at none, or use rope_factor"
            )
        scaling = with_original(inference.rope_scaling, getattr(self.config, "context", None) or 0)
        return replace(inference, rope_scaling=scaling)

    def check_tokens(self, tokens: Tensor, keep: Tensor | None) -> None:
        """Raise ShapeError or RangeError unless tokens and padding mask are valid inputs of this model."""
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


def _is_observed(module: nn.Module) -> bool:
    """Whether something outside the model sees the calls of a module: hooks, or listeners of a tap."""
    return has_hooks(module) or (isinstance(module, TapBase) and module.has_listeners)


def _token_positions(tokens: Tensor, positions: Positions | None, keep: Tensor | None) -> Positions:
    if keep is not None:
        return Positions.masked(keep)
    batch, length = tokens.shape
    if positions is None:
        return Positions.counted(length)
    positions.check({"B": batch, "H": 1, "T": length, "S": length})
    return positions


def count_parameters(model: nn.Module) -> int:
    """Number of parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())
