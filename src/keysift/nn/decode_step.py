"""The compiled decode step of a model: when it applies, and the call.

A step describes the model as plain weights once (decode_weights.py) and then runs a token in one call of the compiled
library. Before each call it checks that the modules are as it found them: the same modules and parameters, no hooks, no
listeners. Anything else takes the path through the modules, which defines the result.

Letters: B batch, D model width, N vocabulary.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from keysift.kernels.attend import forced_backend
from keysift.kernels.cpu import decode, library
from keysift.kernels.cpu.decode import Decoder, Ends, ModelWeights
from keysift.kernels.cpu.huge_pages import use_huge_pages
from keysift.kernels.cpu.library import DecodeCache
from keysift.kernels.transforms import can_inspect_values, in_forward_mode
from keysift.nn.cache import Cache
from keysift.nn.decode_weights import NotDescribed, describe_layer
from keysift.nn.hooks import GLOBAL_FORWARD_HOOKS, forward_hooks, replaces_forward
from keysift.nn.inference import Inference
from keysift.nn.tap import TapBase

Describe = Callable[[list[Tensor]], Ends]


class ModuleState:
    """The modules of a model, to find out later whether any was replaced, hooked, watched or given other parameters."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._modules = modules
        self._types = [type(module) for module in modules]
        self._children = [module._modules for module in modules if module._modules]
        self._children_then = [dict(children) for children in self._children]
        self._attributes = [module.__dict__ for module in modules]
        taps = [module for module in modules if isinstance(module, TapBase)]
        self._must_be_empty = [
            *GLOBAL_FORWARD_HOOKS,
            *(hooks for module in modules for hooks in forward_hooks(module)),
            *(listeners for tap in taps for listeners in (tap._listeners, tap._editors)),
        ]
        places = [(module._parameters, name) for module in modules for name in module._parameters]
        self._homes, self._names = [home for home, _ in places], [name for _, name in places]
        self._found_then = [home.get(name) for home, name in places]
        self._parameters = [x for x in self._found_then if x is not None]
        self._addresses_then = list(map(Tensor.data_ptr, self._parameters))

    def requires_grad(self) -> bool:
        return any(parameter.requires_grad for parameter in self._parameters)

    def _replaced_parameter(self) -> bool:
        """Whether a parameter is another tensor or None, or its values are elsewhere."""
        found = map(dict.get, self._homes, self._names)
        if any(map(operator.is_not, found, self._found_then)):
            return True
        return list(map(Tensor.data_ptr, self._parameters)) != self._addresses_then

    # This runs before every token, when its weights have filled the processor's caches: map avoids loops in Python.

    def difference(self) -> str | None:
        """The first difference that matters, or None."""
        if any(self._must_be_empty):
            return "a module has a hook, or a tap has a listener"
        if self._children != self._children_then or list(map(type, self._modules)) != self._types:
            return "a module was replaced"
        if replaces_forward(*self._attributes):
            return "the forward method of a module was replaced"
        return "a parameter was replaced" if self._replaced_parameter() else None


class BoundCache:
    """C structures of a cache for one decoder. They hold until a buffer is allocated anew."""

    def __init__(self, cache: Cache, decoder: Decoder, screens: list[bool]) -> None:
        self.decoder = decoder
        self._entries = [layer_cache.entries for layer_cache in cache.layers]
        prepared = [
            layer_cache.prepare_keys(decoder, layer) if layer_screens else None
            for layer, (layer_cache, layer_screens) in enumerate(zip(cache.layers, screens, strict=True))
        ]
        blocks = (keys.blocks for keys in prepared if keys is not None)
        use_huge_pages([*(x for entries in self._entries for x in entries.values()), *blocks])
        self._kept = [(store.ring_G2, keys) for store, keys in zip(cache.layers, prepared, strict=True)]
        self.structures = (DecodeCache * len(cache.layers))(
            *(
                decode.cache_structure(store.entries["k"], store.entries["v"], store.ring_G2, keys)
                for store, keys in zip(cache.layers, prepared, strict=True)
            )
        )

    # A copy of the cache has buffers of its own.
    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def holds(self, cache: Cache, decoder: Decoder) -> bool:
        return self.decoder is decoder and all(
            layer_cache.entries is entries for layer_cache, entries in zip(cache.layers, self._entries, strict=True)
        )


class DecodeStep:
    """A model prepared for the compiled step, for one set of inference options. Raises NotDescribed."""

    def __init__(self, model: nn.Module, layers: nn.ModuleList, describe_ends: Describe, inference: Inference) -> None:
        self.inference = inference
        self.state = ModuleState(model)
        reason = self.state.difference()
        if reason is not None:
            raise NotDescribed(reason)
        sources: list[Tensor] = []
        ends = describe_ends(sources)
        weights = ModelWeights(ends, [describe_layer(layer, inference, sources) for layer in layers], sources)
        reason = decode.unsupported_weights(weights)
        if reason is not None:
            raise NotDescribed(reason)
        self._screens = [layer.screening is not None for layer in weights.layers]
        # Shapes and dtype of new entries, for the allocation of a cache.
        self._entries = [
            {
                "k": torch.empty(0, layer.key_heads, 1, layer.key_width, dtype=ends.embedding.dtype),
                "v": torch.empty(0, layer.key_heads, 1, layer.value_width, dtype=ends.embedding.dtype),
            }
            for layer in weights.layers
        ]
        self.decoder = Decoder(weights)
        use_huge_pages(model.parameters())

    def declines(self, cache: Cache) -> str | None:
        """Why the step cannot use this cache, or None."""
        if not all(layer_cache.finite for layer_cache in cache.layers):
            return "the cache holds a key or value that is not finite"
        if cache.bound is not None and cache.bound.holds(cache, self.decoder):
            return None
        if len(cache.layers) != len(self._entries):
            return "the cache has another number of layers"
        for layer_cache, like in zip(cache.layers, self._entries, strict=True):
            if len(layer_cache.limits) != like["k"].shape[1]:
                return "the cache has another number of heads"
            for name, entries in layer_cache.entries.items():
                if name not in like or (entries.dtype, entries.shape[2]) != (like[name].dtype, like[name].shape[3]):
                    return "the cache has another dtype or width"
                if entries.device.type != "cpu":
                    return f"the cache is on {entries.device.type}"
        return None

    def run(self, tokens: list[int], cache: Cache) -> Tensor | None:
        """Logits B 1 N. None if a parameter changed from which values were prepared; nothing was done then."""
        end = max(cache.lengths) + 1
        for layer_cache, entries in zip(cache.layers, self._entries, strict=True):
            if end > layer_cache.allocated and not (layer_cache.at_limit and layer_cache.entries):
                layer_cache.reserve(end, entries)
        bound = cache.bound
        if bound is None or not bound.holds(cache, self.decoder):
            bound = cache.bound = BoundCache(cache, self.decoder, self._screens)
        logits_B1N = torch.empty(cache.batch, 1, self.decoder.vocabulary, dtype=self.decoder.dtype)
        if not self.decoder.run(bound.structures, tokens, cache.lengths, cache.start, logits_B1N):
            return None
        for layer_cache, structure in zip(cache.layers, bound.structures, strict=True):
            if not structure.finite:
                layer_cache.finite = False
        cache.advance_by_one()
        return logits_B1N


class StepHolder:
    """The latest step of a model. Copies and pickles of the model start without one."""

    def __init__(self) -> None:
        self.step: DecodeStep | None = None

    def __deepcopy__(self, memo: Any) -> "StepHolder":
        return StepHolder()

    def __reduce__(self) -> tuple[type["StepHolder"], tuple[()]]:
        return StepHolder, ()

    def prepare(self, make: Callable[[Inference], DecodeStep], inference: Inference) -> DecodeStep | str:
        """A step that fits the model as it is now, or the reason why there is none."""
        if self.step is None or self.step.inference != inference or self.step.state.difference() is not None:
            self.step = None
            try:
                self.step = make(inference)
            except NotDescribed as reason:
                return str(reason)
        return self.step


# A plain list, because torch.compile guards on lists and does not support context variables.
_through_modules: list[bool] = []


@contextmanager
def through_modules() -> Iterator[None]:
    """Within this context every call runs through the modules, as if there were no compiled step. Not thread-safe."""
    _through_modules.append(True)
    try:
        yield
    finally:
        _through_modules.pop()


def declines_call(tokens: Tensor, cache: Cache | None) -> str | None:
    """Why no model can run this call through the compiled step, or None."""
    # After a token, its weights have filled the processor's caches and every call here reads memory: few calls.
    if not can_inspect_values() or in_forward_mode() or torch._C._is_tracing():
        return "a transform of torch is active"
    if not isinstance(cache, Cache):
        return "there is no cache"
    if type(tokens) is not Tensor or tokens.ndim != 2 or tokens.shape[1] != 1 or tokens.dtype != torch.int64:
        return "it decodes one token per row"
    if tokens.shape[0] != cache.batch or not 1 <= cache.batch <= decode.MAX_ROWS:
        return f"it decodes 1 to {decode.MAX_ROWS} rows, as many as the cache has"
    if tokens.device.type != "cpu":
        return f"the tokens are on {tokens.device.type}"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return "a mode of torch is active"
    if forced_backend() is not None or _through_modules:
        return "a backend or the path through the modules is forced"
    unavailable = library.unavailable()
    return None if unavailable is None else unavailable.text
