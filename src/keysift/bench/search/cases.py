"""One screening tile with an infinite window, as a model whose tokens are given queries, over given keys."""

import math
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from keysift.data import find_source
from keysift.models.architecture import MultiscreenArch
from keysift.models.language_model import LanguageModel
from keysift.models.registry import build, configure
from keysift.models.text_model import TextModel
from keysift.nn.cache import Cache
from keysift.nn.decode_step import through_modules
from keysift.nn.inference import Inference, Search
from keysift.nn.tap import trace

KEY_WIDTH = 16
VALUE_WIDTH = 64
CONTEXT = 64
QUERIES = 32


@dataclass(frozen=True, eq=False)
class TileKeys:
    """Queries and keys of one tile, and its acceptance. Keys are repeated if a context needs more."""

    name: str
    acceptance: float
    queries: Tensor  # QUERIES, key width
    keys: Tensor


def random_keys(acceptance: float, count: int) -> TileKeys:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(QUERIES, KEY_WIDTH, generator=generator)
    keys = torch.randn(count, KEY_WIDTH, generator=generator)
    return TileKeys(f"random keys, r = {acceptance:g}", acceptance, queries, keys)


def leaning_keys(acceptance: float, count: int) -> TileKeys:
    """Random keys that lean to one side, as the queries do, so that nearly all are accepted."""
    drawn = random_keys(acceptance, count)
    side = torch.eye(KEY_WIDTH)[0]
    return TileKeys(f"leaning keys, r = {acceptance:g}", acceptance, drawn.queries + 12 * side, drawn.keys + 3 * side)


@torch.inference_mode()
def trained_tiles(checkpoint: str, opened: TextModel, *, text_tokens: int, count: int) -> list[TileKeys]:
    """Every tile of a model whose window is longer than its training length, with the keys of long texts.

    Windows are expanded. The texts follow each other: Python's standard library for a model of text, and symbols drawn
    uniformly for a model of a generated task.
    """
    model = opened.model
    ids = token_ids(opened, -(-count // text_tokens) * text_tokens)
    keys: dict[tuple[int, int], list[Tensor]] = {}
    queries: dict[tuple[int, int], Tensor] = {}
    inference = model.cache(1, inference=Inference(expand_windows=True)).inference  # with the training length
    long = {
        layer: found
        for layer, scalars in enumerate(model.layer_scalars())
        if (found := [tile for tile, window in enumerate(scalars.windows(inference)) if math.isinf(window)])
    }
    for text_1T in ids.view(-1, 1, text_tokens):
        with ExitStack() as traces:  # of these layers only: a traced layer is slow
            traced = {
                (layer, name): traces.enter_context(trace(model, f"layers.{layer}.{name}"))
                for layer in long
                for name in ("q", "k")
            }
            model.hidden(text_1T, inference=inference)
        for layer, tiles_of_layer in long.items():
            ((q_HTK,), (k_HTK,)) = (next(iter(traced[layer, name].values())) for name in ("q", "k"))
            for tile in tiles_of_layer:
                keys.setdefault((layer, tile), []).append(k_HTK[tile].clone())
                queries[layer, tile] = q_HTK[tile, -QUERIES:].clone()
    tiles = []
    for (layer, tile), parts in keys.items():
        acceptance = float(model.scalars()[layer]["acceptance"][tile])
        name = f"{checkpoint}, layer {layer}, tile {tile}, r = {acceptance:.2f}"
        tiles.append(TileKeys(name, acceptance, queries[layer, tile], torch.cat(parts)))
    return tiles


def token_ids(opened: TextModel, count: int) -> Tensor:
    tokenizer = opened.tokenizer
    if tokenizer.name.startswith("recall:"):
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, opened.model.config.vocab_size, (count,), generator=generator)
    ids: list[int] = []
    while len(ids) < count:
        for document in find_source("stdlib").documents():
            ids += tokenizer.encode(document.text)
            if len(ids) >= count:
                break
    return torch.tensor(ids[:count])


class TileCase:
    """A model with one tile, and its cache after `length` tokens."""

    def __init__(
        self,
        tile: TileKeys,
        length: int,
        search: Search,
        *,
        value_width: int = VALUE_WIDTH,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.length, self.search, self._token = length, search, 0
        self.model = _one_tile(tile, value_width).to(dtype)
        inference = Inference(expand_windows=CONTEXT, search=search)
        self.cache: Cache = self.model.cache(1, inference=inference)
        (layer,) = self.cache.layers
        widths = {"k": tile.keys.shape[1], "v": value_width}
        layer.reserve(length + 1, {name: torch.empty(0, 1, 1, x, dtype=dtype) for name, x in widths.items()})
        repeats = -(-length // len(tile.keys))
        layer.entries["k"][0, :length] = tile.keys.repeat(repeats, 1)[:length]
        layer.entries["v"].normal_(generator=torch.Generator().manual_seed(1))

    @torch.inference_mode()
    def decode(self) -> Tensor:
        """Logits of the next query, after the same keys every time."""
        self.cache.lengths = self.cache._longest = [self.length]
        self._token = (self._token + 1) % QUERIES
        logits: Tensor = self.model(torch.tensor([[self._token]]), cache=self.cache)
        return logits

    def decode_through_modules(self) -> Tensor:
        with through_modules():
            return self.decode()

    def counts(self) -> dict[str, int]:
        """Keys of the latest query: in the window, read in fp32, accepted."""
        (counts,) = self.cache.key_counts()
        assert counts is not None
        return {name: int(getattr(counts, name)[0, 0]) for name in ("in_window", "read", "accepted")}

    def search_bytes(self) -> int:
        prepared = self.cache.layers[0].prepared
        assert prepared is not None
        return prepared.search.nbytes


def unit_query(tile: TileKeys, dtype: torch.dtype) -> tuple[Tensor, float]:
    """The first query of a tile at length 1, and the threshold of its scores, as a model of this dtype has them."""
    model = _one_tile(tile, 1).to(dtype)
    q_K = model.get_parameter("embedding.weight")[0].detach().double()
    return q_K / q_K.norm(), float(1 - model.scalars()[0]["acceptance"].detach().float())


def _one_tile(tile: TileKeys, value_width: int) -> LanguageModel:
    width = tile.keys.shape[1]
    arch = MultiscreenArch(depth=1, tiles=1, width=width, key_width=width, value_width=value_width)
    model = build(configure(arch, vocab_size=QUERIES, context=CONTEXT), torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():
        model.get_parameter("embedding.weight").copy_(tile.queries)
        model.get_parameter("layers.0.tiles.q_proj.weight").copy_(torch.eye(width))
        model.get_parameter("layers.0.tiles.scalars.s_w").fill_(30.0)  # a window of e^30 tokens
        acceptance = torch.tensor([tile.acceptance], dtype=torch.float64)
        model.get_parameter("layers.0.tiles.scalars.s_r").copy_(torch.logit(acceptance))
    return model
