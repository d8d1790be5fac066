"""Layers described as plain weights, for the compiled decode step. Other layers raise NotDescribed with the reason."""

from typing import TypeVar, cast

from torch import Tensor, nn

from keysift.kernels.cpu.decode import SEARCHES, FeedForward, LayerWeights, Linear, Norm, Rope, Screening
from keysift.kernels.cpu.screening import mechanism_flags, window_threshold
from keysift.mechanisms.softmax import SOFTMAX
from keysift.mechanisms.spec import Mechanism
from keysift.nn.attention import Attention
from keysift.nn.block import Block, SwiGLU
from keysift.nn.inference import Inference
from keysift.nn.rotary import NoRotation, RotaryEmbedding
from keysift.nn.scalars import MechanismScalars
from keysift.nn.tile import Gate, Layer, NoGate, Tiles

M = TypeVar("M", bound=nn.Module)


class NotDescribed(Exception):
    """The layer has a part that the compiled step does not know; the message names it."""


def describe_layer(layer: nn.Module, inference: Inference, sources: list[Tensor]) -> LayerWeights:
    """Weights of a layer. Appends the parameters from which values are computed to `sources`.

    Raises NotDescribed.
    """
    if type(layer) is Layer:
        return _tiles(layer.tiles, inference, sources)
    if type(layer) is Block:
        return _block(layer, inference, sources)
    raise NotDescribed(f"a layer is a {type(layer).__name__}")


def _tiles(tiles: Tiles, inference: Inference, sources: list[Tensor]) -> LayerWeights:
    gate = _expect(tiles.gating, Gate, NoGate)
    sources.append(tiles.s_O)
    site = tiles.scalars.site
    return LayerWeights(
        heads=tiles.heads,
        key_heads=tiles.heads,
        key_width=site.key_width,
        value_width=site.value_width,
        q=linear(tiles.q_proj),
        k=linear(tiles.k_proj),
        v=linear(tiles.v_proj),
        o=linear(tiles.o_proj),
        rope=_rope(tiles.rotary, site.key_width, inference),
        screening=_screening(tiles.mechanism, tiles.scalars, inference, sources),
        gate=linear(gate.gate_proj).weight if isinstance(gate, Gate) else None,
        head_scale=tiles.s_O.detach().float().exp(),
    )


def _block(block: Block, inference: Inference, sources: list[Tensor]) -> LayerWeights:
    attention, mlp = _expect(block.attention, Attention), _expect(block.mlp, SwiGLU)
    site = attention.scalars.site
    if attention.position.kept:
        raise NotDescribed("keys stay visible beyond the window")
    if attention.position.kind == "alibi":
        raise NotDescribed("it does not support ALiBi")
    if attention.shift is not None:
        raise NotDescribed("keys or values are mixed with those of the previous token")
    return LayerWeights(
        heads=attention.query_heads,
        key_heads=attention.key_heads,
        key_width=site.key_width,
        value_width=site.value_width,
        q=linear(attention.q_proj),
        k=linear(attention.k_proj),
        v=linear(attention.v_proj),
        o=linear(attention.o_proj),
        norm=norm(block.attention_norm),
        q_norm=None if type(attention.q_norm) is nn.Identity else norm(attention.q_norm),
        k_norm=None if type(attention.k_norm) is nn.Identity else norm(attention.k_norm),
        rope=_rope(attention.rotary, site.key_width, inference),
        screening=_screening(attention.mechanism, attention.scalars, inference, sources),
        window=attention.position.window,
        feed_forward=FeedForward(
            norm(block.mlp_norm), *(linear(x).weight for x in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        ),
    )


def _screening(
    mechanism: Mechanism, scalars: MechanismScalars, inference: Inference, sources: list[Tensor]
) -> Screening | None:
    """Scalars of a screening layer, None for softmax."""
    if mechanism.rule == SOFTMAX.rule and not (mechanism.prepare or mechanism.finish or mechanism.scalars):
        return None
    flags = mechanism_flags(mechanism)
    if flags is None:
        raise NotDescribed(f"it computes softmax and screening, not {mechanism.name}")
    sources += scalars.parameters(recurse=False)
    values = scalars.aligned(inference)
    return Screening(
        window=values["window"],
        effective_window=values["effective_window"],
        acceptance=values["acceptance"],
        flags=flags,
        threshold=window_threshold(mechanism),
        search=SEARCHES[inference.search],
    )


def _rope(rotary: nn.Module, key_width: int, inference: Inference) -> Rope | None:
    if type(rotary) is NoRotation:
        return None
    rotary = _expect(rotary, RotaryEmbedding)
    if rotary.width != key_width:
        raise NotDescribed("only a part of the channels is rotated")
    frequencies, attention_factor = rotary.frequencies(inference)
    return Rope(tuple(frequencies), inference.rope_factor, attention_factor)


def linear(module: nn.Module) -> Linear:
    """Weight and bias of a linear layer. Raises NotDescribed for anything else, such as an adapter."""
    module = _expect(module, nn.Linear)
    return Linear(module.weight, module.bias)


def norm(module: nn.Module) -> Norm:
    """Gain and epsilon of an RMSNorm."""
    module = _expect(module, nn.RMSNorm)
    if module.eps is None:
        raise NotDescribed("an RMSNorm has no epsilon")
    return Norm(cast(Tensor | None, module.weight), module.eps)


def _expect(module: nn.Module, *kinds: type[M]) -> M:
    """The module, if its type is exactly one of these: a subclass may compute something else."""
    if type(module) not in kinds:
        raise NotDescribed(f"a part of a layer is a {type(module).__name__}")
    return cast(M, module)
