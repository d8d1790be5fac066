"""Taps of a transformers model outside its attention: embedding, residual stream, feed-forward block and logits.

They are forward hooks of the model's own modules, found by their place in a decoder layer. A hook without an edit
returns nothing, so a trace leaves the output bit-identical. `stream_mid` does not exist in a block whose attention and
feed-forward block read the same stream (Phi), `mlp.hidden` not in a feed-forward block without one output projection.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

from torch import Tensor, nn

from keysift.core.errors import UnsupportedError
from keysift.nn.tap import Tap

_ATTENTION = ("self_attn", "attn", "attention")
_SECOND_NORMS = ("post_attention_layernorm", "ln_2")
_DOWN = ("down_proj", "c_proj", "fc2", "dense_4h_to_h")
# Gemma 2 and 3 normalise what attention and feed-forward block return before it is added to the stream.
_NORMALISED = ("post_attention_layernorm", "post_feedforward_layernorm", "pre_feedforward_layernorm")


def stream_taps(model: Any) -> dict[str, Tap]:
    """New taps by address, in the order in which a token passes them."""
    addresses = ["embed"]
    for number, layer in enumerate(decoder_layers(model)):
        names = ["stream_in", "attention_out", "stream_mid", "mlp.hidden", "mlp_out", "stream"]
        if not _is_sequential(layer):
            names.remove("stream_mid")
        if _child(layer.mlp, _DOWN) is None:
            names.remove("mlp.hidden")
        addresses += [f"layers.{number}.{name}" for name in names]
    return {address: Tap() for address in (*addresses, "logits")}


def attach(model: Any, taps: Mapping[str, Tap]) -> AbstractContextManager[Any]:
    """Hook the taps into the model; closing the result removes the hooks."""
    hooks = ExitStack()
    hooks.callback(model.get_input_embeddings().register_forward_hook(_on_output(taps["embed"])).remove)
    hooks.callback(model.register_forward_hook(_on_logits(taps["logits"])).remove)
    for number, layer in enumerate(decoder_layers(model)):
        tap = partial(_find, taps, number)
        attention, mlp = _child(layer, _ATTENTION), layer.mlp
        if all(hasattr(layer, name) for name in _NORMALISED):
            attention, mlp = layer.post_attention_layernorm, layer.post_feedforward_layernorm
        assert attention is not None
        inputs: list[Tensor] = []
        handles = [
            layer.register_forward_pre_hook(_on_input(tap("stream_in"), inputs), with_kwargs=True),
            attention.register_forward_hook(_on_output(tap("attention_out"))),
            mlp.register_forward_hook(_on_output(tap("mlp_out"))),
            layer.register_forward_hook(_on_output(tap("stream"))),
        ]
        if _is_sequential(layer):
            handles.append(attention.register_forward_hook(_on_sum(tap("stream_mid"), inputs)))
        down = _child(layer.mlp, _DOWN)
        if down is not None:
            handles.append(down.register_forward_pre_hook(_on_input(tap("mlp.hidden"), []), with_kwargs=True))
        for handle in handles:
            hooks.callback(handle.remove)
    return hooks


def decoder_layers(model: Any) -> list[Any]:
    """The layers of a causal model: the longest list of modules that each hold attention and a feed-forward block."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for layers in sorted(lists, key=len, reverse=True):
        if len(layers) and all(_child(layer, _ATTENTION) is not None and hasattr(layer, "mlp") for layer in layers):
            return list(layers)
    raise UnsupportedError(
        f"{type(model).__name__} has no list of layers with attention and mlp, so its residual stream cannot be "
        f"traced; GPT-2, Llama, Qwen, Mistral, Gemma, SmolLM and Phi models work"
    )


def _find(taps: Mapping[str, Tap], number: int, name: str) -> Tap:
    return taps[f"layers.{number}.{name}"]


def _child(module: Any, names: tuple[str, ...]) -> nn.Module | None:
    return next((getattr(module, name) for name in names if hasattr(module, name)), None)


def _is_sequential(layer: Any) -> bool:
    """Whether the feed-forward block reads the stream to which attention was added."""
    parallel = getattr(layer, "use_parallel_residual", False)
    return _child(layer, _SECOND_NORMS) is not None and not parallel


def _replace(output: Any, value: Tensor) -> Any:
    return (value, *output[1:]) if isinstance(output, tuple) else value


def _on_output(tap: Tap) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if not tap.has_listeners:
            return None
        value = tap(output[0] if isinstance(output, tuple) else output)
        return _replace(output, value) if tap.has_editors else None

    return hook


def _on_sum(tap: Tap, inputs: list[Tensor]) -> Callable[..., Any]:
    """The stream after attention is a sum inside the layer; an edit of it is written into the summand."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if not tap.has_listeners:
            return None
        value = tap(inputs[-1] + (output[0] if isinstance(output, tuple) else output))
        return _replace(output, value - inputs[-1]) if tap.has_editors else None

    return hook


def _on_input(tap: Tap, inputs: list[Tensor]) -> Callable[..., Any]:
    """Pass the first argument through the tap and leave it in `inputs`."""

    def hook(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        value = tap(args[0] if args else options["hidden_states"])
        inputs[:] = [value]
        if not tap.has_editors:
            return None
        return ((value, *args[1:]), options) if args else (args, {**options, "hidden_states": value})

    return hook


def _on_logits(tap: Tap) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if tap.has_listeners:
            output.logits = tap(output.logits)

    return hook
