"""The compiled decode step: logits of one new token per row, from token ids and cache in one call (csrc/decode.h).

The caller describes a model as plain tensors. Weights are read where they are, so a change of their values needs
nothing. Values that are computed from parameters once (windows, scales of heads) are checked in every call: if their
source changed, `Decoder.run` returns False and the caller describes the model again.

Letters: B batch, H heads, G key heads, K key width, V value width, D model width, N vocabulary.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from keysift.kernels.cpu import library
from keysift.kernels.cpu.library import DecodeCache, DecodeLayer, DecodeModel, DecodeSource

MAX_ROWS = 8
PREPARED_KEYS = 16  # slots of a block of prepared keys
SEARCHES = {"auto": 0, "scan": 1, "sketch": 2, "groups": 3, "moments": 4}  # keysift_search of csrc/decode.h
SEARCH_STATE = 16  # numbers per row and tile
_ROW_NUMBERS = ctypes.c_int64 * MAX_ROWS


@dataclass(frozen=True, eq=False)
class Linear:
    """Weight (outputs, inputs), and a bias or None."""

    weight: Tensor
    bias: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Norm:
    """RMSNorm; a missing gain is one."""

    gain: Tensor | None
    eps: float


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: radians per position, after positions are divided."""

    frequencies: tuple[float, ...]
    divisor: float
    attention_factor: float


@dataclass(frozen=True, eq=False)
class Screening:
    """Scalars of the tiles, one each, and the steps that are left out (flags of csrc/screening.h)."""

    window: Tensor
    effective_window: Tensor
    acceptance: Tensor
    flags: int
    threshold: float  # windows from here on are not rotated
    search: int = 0  # one of SEARCHES


@dataclass(frozen=True, eq=False)
class FeedForward:
    """SwiGLU with its norm."""

    norm: Norm
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerWeights:
    """One layer. Without `screening` its attention is softmax. `window` bounds it, in tokens; None does not."""

    heads: int
    key_heads: int
    key_width: int
    value_width: int
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    norm: Norm | None = None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rope: Rope | None = None
    screening: Screening | None = None
    window: int | None = None
    gate: Tensor | None = None
    head_scale: Tensor | None = None
    feed_forward: FeedForward | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Ends:
    """Embedding and readout. With `unit_rows` the rows of both tables have length one, times a scale."""

    embedding: Tensor
    head: Tensor
    unit_rows: bool = False
    in_scale: float = 1.0
    out_scale: float = 1.0
    norm: Norm | None = None


@dataclass(frozen=True, eq=False)
class ModelWeights:
    """A whole model. `sources` are the parameters from which scalars and scales were computed."""

    ends: Ends
    layers: list[LayerWeights]
    sources: list[Tensor] = field(default_factory=list)


def unsupported_weights(weights: ModelWeights) -> str | None:
    """Reason why the step cannot read these weights, or None. The library trusts the shapes that are checked here."""
    table = weights.ends.embedding
    if table.dtype not in library.DTYPES:
        return f"{table.dtype} is not supported"
    shapes = [(table, tuple(table.shape)), (weights.ends.head, tuple(table.shape))]
    shapes += _gain_shapes(weights.ends.norm, table.shape[1])
    for layer in weights.layers:
        shapes += _layer_shapes(layer, table.shape[1])
        if layer.screening is not None and layer.heads != layer.key_heads:
            return "screening tiles that share keys are not supported"
    for tensor, shape in shapes:
        if tuple(tensor.shape) != shape:
            return f"a weight is {tuple(tensor.shape)} where {shape} fits"
        if tensor.dtype != table.dtype:
            return "the weights have more than one dtype"
    for tensor in (*(tensor for tensor, _ in shapes), *weights.sources):
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout != torch.strided:
            return f"a weight is a {type(tensor).__name__}"
        if tensor.device.type != "cpu":
            return f"the weights are on {tensor.device.type}"
        if not tensor.is_contiguous():
            return "a weight is not contiguous"
    return None


def _gain_shapes(norm: Norm | None, width: int) -> list[tuple[Tensor, tuple[int, ...]]]:
    return [] if norm is None or norm.gain is None else [(norm.gain, (width,))]


def _layer_shapes(layer: LayerWeights, width: int) -> list[tuple[Tensor, tuple[int, ...]]]:
    """Tensors that are read where they are, with the shapes that the library assumes."""
    queries, keys = layer.heads * layer.key_width, layer.key_heads * layer.key_width
    values, outputs = layer.key_heads * layer.value_width, layer.heads * layer.value_width
    found: list[tuple[Tensor, tuple[int, ...]]] = [(layer.o.weight, (width, outputs))]
    for linear, rows in ((layer.q, queries), (layer.k, keys), (layer.v, values)):
        found.append((linear.weight, (rows, width)))
    for linear, rows in ((layer.q, queries), (layer.k, keys), (layer.v, values), (layer.o, width)):
        found += [] if linear.bias is None else [(linear.bias, (rows,))]
    found += [] if layer.gate is None else [(layer.gate, (outputs, width))]
    found += _gain_shapes(layer.norm, width)
    for norm in (layer.q_norm, layer.k_norm):
        found += _gain_shapes(norm, layer.key_width)
    if layer.feed_forward is not None:
        block = layer.feed_forward
        hidden = len(block.gate)
        found += [(block.gate, (hidden, width)), (block.up, (hidden, width)), (block.down, (width, hidden))]
        found += _gain_shapes(block.norm, width)
    return found


class Decoder:
    """The C structures of a model, and the memory they point to."""

    def __init__(self, weights: ModelWeights) -> None:
        self._kept: list[object] = [weights]
        self._frequencies: dict[tuple[float, ...], Tensor] = {}
        self.threads = 0  # as many as pay
        self.dtype = weights.ends.embedding.dtype
        self.vocabulary = len(weights.ends.head)
        layers = (DecodeLayer * len(weights.layers))(*(self._layer(layer) for layer in weights.layers))
        self._layers = layers
        copies = [source.detach().clone() for source in weights.sources]
        sources = (DecodeSource * len(copies))(
            *(DecodeSource(s.data_ptr(), c.data_ptr(), c.nbytes) for s, c in zip(weights.sources, copies, strict=True))
        )
        self._kept += [layers, copies, sources]
        ends = weights.ends
        self._model = DecodeModel(
            *(ends.embedding.shape[1], self.vocabulary, len(weights.layers)),
            ctypes.addressof(layers),
            *(library.DTYPES[self.dtype], ends.unit_rows),
            *(_address(ends.embedding), _address(ends.head), _address(ends.norm.gain if ends.norm else None)),
            *(0.0 if ends.norm is None else ends.norm.eps, ends.in_scale, ends.out_scale),
            *(ctypes.addressof(sources), len(copies)),
        )
        self._reference = ctypes.byref(self._model)
        self._run = library.load().keysift_decode

    def _layer(self, layer: LayerWeights) -> DecodeLayer:
        tiles, block, rope = layer.screening, layer.feed_forward, layer.rope
        norms = [norm.eps if norm is not None else 0.0 for norm in (layer.norm, layer.q_norm, layer.k_norm)]
        if layer.norm is None and block is not None:
            norms[0] = block.norm.eps
        gains = [None if norm is None else norm.gain for norm in (layer.norm, layer.q_norm, layer.k_norm)]
        linears = (layer.q, layer.k, layer.v, layer.o)
        scalars = (None,) * 3 if tiles is None else (tiles.window, tiles.effective_window, tiles.acceptance)
        return DecodeLayer(
            *(layer.heads, layer.key_heads, layer.key_width, layer.value_width),
            *(
                0 if block is None else len(block.gate),
                layer.window or 0,
                tiles is not None,
                0 if tiles is None else tiles.flags,
            ),
            _address(gains[0]),
            *(_address(linear.weight) for linear in linears),
            _address(layer.gate),
            *(_address(linear.bias) for linear in linears),
            *(_address(gain) for gain in gains[1:]),
            None if rope is None else self._angles(rope).data_ptr(),
            *((1.0, 1.0) if rope is None else (rope.divisor, rope.attention_factor)),
            *(self._prepared(scalar) for scalar in (*scalars, layer.head_scale)),
            *(
                _address(x)
                for x in ((None,) * 4 if block is None else (block.norm.gain, block.gate, block.up, block.down))
            ),
            *norms,
            *((0.0, 0) if tiles is None else (tiles.threshold, tiles.search)),
        )

    def _angles(self, rope: Rope) -> Tensor:
        """Frequencies in fp64. Layers with equal frequencies share them, so the kernel computes their angles once."""
        if rope.frequencies not in self._frequencies:
            self._frequencies[rope.frequencies] = torch.tensor(rope.frequencies, dtype=torch.float64)
        return self._frequencies[rope.frequencies]

    def _prepared(self, values: Tensor | None) -> int | None:
        if values is None:
            return None
        copied = values.detach().float().reshape(-1).clone()
        self._kept.append(copied)
        return copied.data_ptr()

    def search_bytes(self, layer: int, ring_G2: Tensor) -> int:
        """Bytes that exact search needs for one row of a layer's cache. 0 if every ring is scanned."""
        pointer = ctypes.byref(self._layers[layer])
        return int(library.load().keysift_search_bytes(pointer, ctypes.c_void_p(ring_G2.data_ptr())))

    def run(self, caches: ctypes.Array, tokens: list[int], lengths: list[int], start: int, logits_B1N: Tensor) -> bool:  # type: ignore[type-arg]
        """Append one token per row to the caches and write its logits. False: a source changed, nothing was done."""
        rows = len(lengths)
        status = self._run(
            self._reference,
            caches,
            ctypes.c_int64(rows),
            _ROW_NUMBERS(*tokens),
            _ROW_NUMBERS(*lengths),
            _ROW_NUMBERS(*(start + length for length in lengths)),
            ctypes.c_int64(self.threads),
            ctypes.c_void_p(logits_B1N.data_ptr()),
        )
        if status == library.STALE:
            return False
        library.check_status(status)
        return True


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


@dataclass(frozen=True, eq=False)
class PreparedKeys:
    """Keys of a cache at unit length, rotated, in blocks, and the number of tokens of each row that are prepared.

    `search` holds their sketches and groups, `state` what the latest queries did (csrc/search_layout.h). `decoder`
    prepared them: another one has other windows, and so other rotations.
    """

    blocks: Tensor  # B, blocks, K + 1, PREPARED_KEYS
    tokens: Tensor  # B, int64
    search: Tensor  # B, bytes
    state: Tensor  # B, G, SEARCH_STATE, int64
    decoder: Decoder

    # A copy of a cache prepares its keys again: a decoder cannot be copied.
    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes + self.search.nbytes

    def rows(self, rows_X: Tensor) -> "PreparedKeys":
        """These rows, in this order."""
        blocks, tokens, search, state = (
            tensor.index_select(0, rows_X) for tensor in (self.blocks, self.tokens, self.search, self.state)
        )
        return PreparedKeys(blocks, tokens, search, state, self.decoder)


def cache_structure(k_BRK: Tensor, v_BRV: Tensor, ring_G2: Tensor, prepared: PreparedKeys | None) -> DecodeCache:
    """The C structure of one layer's cache. The caller keeps the tensors alive."""
    return DecodeCache(
        *(k_BRK.data_ptr(), v_BRV.data_ptr(), ring_G2.data_ptr(), k_BRK.shape[1]),
        *((None, 0, None, None, 0, None) if prepared is None else _prepared_fields(prepared)),
        1,
    )


def _prepared_fields(prepared: PreparedKeys) -> tuple[int, int, int, int, int, int]:
    return (
        *(prepared.blocks.data_ptr(), prepared.blocks.shape[1], prepared.tokens.data_ptr()),
        *(prepared.search.data_ptr(), prepared.search.shape[1], prepared.state.data_ptr()),
    )
