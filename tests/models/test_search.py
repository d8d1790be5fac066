"""Exact search: sketches and groups accept the keys that a scan accepts, and give the same logits, bit for bit.

Keys are written into the cache of a model with one tile; the queries are those of its tokens.
"""

import copy
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from keysift.core.errors import RangeError
from keysift.kernels.cpu import library
from keysift.models.architecture import MultiscreenArch
from keysift.models.language_model import LanguageModel
from keysift.models.registry import build, configure
from keysift.nn.cache import Cache
from keysift.nn.inference import Inference, Search
from tests.refusals import refuses

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason="needs the compiled kernel")
TOKENS = 8
CONTEXT = 64
EPOCH = 16_384  # kEpoch of csrc/search_layout.h
WAYS: tuple[Search, ...] = ("scan", "sketch", "groups", "auto")
VISIBLE, JUDGED, ACCEPTED, OPENED = range(4)


def one_tile(
    acceptance: float, window: float, *, key_width: int = 16, dtype: torch.dtype = torch.float32
) -> LanguageModel:
    arch = MultiscreenArch(depth=1, tiles=1, width=24, key_width=key_width, value_width=20)
    model = build(configure(arch, vocab_size=TOKENS, context=CONTEXT), torch.Generator().manual_seed(3)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(generator=torch.Generator().manual_seed(len(name)))
        model.get_parameter("layers.0.tiles.scalars.s_w").fill_(math.log(window - 1))
        model.get_parameter("layers.0.tiles.scalars.s_r").fill_(math.log(acceptance / (1 - acceptance)))
    return model.to(dtype)


def query(model: LanguageModel, token: int) -> np.ndarray:
    """The unit query of a token, in fp64. Windows from 256 on are not rotated."""
    with torch.no_grad():
        x = model.embed_rows(model.embedding(torch.tensor([[token]])))
        q = (x @ model.get_parameter("layers.0.tiles.q_proj.weight").T)[0, 0].double().numpy()
    return np.asarray(q / np.linalg.norm(q))


def cache_of(model: LanguageModel, search: Search, keys: Tensor, *, batch: int = 1, expand: bool = True) -> Cache:
    """A cache as after len(keys) tokens, with these keys (text order) and random values."""
    inference = Inference(expand_windows=CONTEXT if expand else False, search=search)
    cache = model.cache(batch, inference=inference)
    layer, tokens = cache.layers[0], len(keys)
    dtype = model.get_parameter("embedding.weight").dtype
    like = {"k": torch.empty(0, 1, 1, keys.shape[1], dtype=dtype), "v": torch.empty(0, 1, 1, 20, dtype=dtype)}
    layer.reserve(tokens + 40, like)
    capacity = layer.capacity[0]
    values = torch.randn(tokens, 20, generator=torch.Generator().manual_seed(5))
    number = torch.arange(max(0, tokens - capacity), tokens)
    for name, rows in (("k", keys), ("v", values)):
        layer.entries[name][:, number % capacity] = rows[number].to(dtype)
    cache.lengths = [tokens] * batch
    cache._longest = [tokens] * batch
    return cache


@torch.no_grad()
def decode(model: LanguageModel, cache: Cache, tokens: list[int], threads: int = 0) -> Tensor:
    """Logits of tokens decoded one after the other, by the compiled step."""
    found = []
    for token in tokens:
        ids = torch.full((cache.batch, 1), token)
        assert model.explain_decode(ids, cache=cache) == "compiled"
        step = model._step_holder().step
        assert step is not None
        step.decoder.threads = threads
        found.append(model(ids, cache=cache))
    return torch.cat(found, dim=1)


def state(cache: Cache, row: int = 0) -> list[int]:
    prepared = cache.layers[0].prepared
    assert prepared is not None
    counts: list[int] = prepared.state[row, 0].tolist()
    return counts


def draw_keys(kind: str, tokens: int, width: int, generator: torch.Generator) -> Tensor:
    keys = torch.randn(tokens, width, generator=generator)
    if kind != "random":
        centres = torch.randn(100, width, generator=generator)
        spread = {"clusters": 0.05, "duplicates": 0.0}[kind]
        keys = centres[torch.randint(0, 100, (tokens,), generator=generator)] + spread * keys
    keys[torch.randint(0, tokens, (20,), generator=generator)] = 0.0
    return keys * torch.rand(tokens, 1, generator=generator).mul(8).sub(4).exp()


CASES = {
    "infinite": (1e12, True, 2 * EPOCH + 300),
    "rotated": (100.0, True, EPOCH + 50),
    "fading": (5_000.0, False, 12_345),
    "fading, one lap": (EPOCH + 3_000.0, False, EPOCH + 2_000),
    "fading, two epochs": (2 * EPOCH + 99.0, False, 5 * EPOCH),
}


@pytest.mark.parametrize("kind", ["random", "clusters", "duplicates"])
@pytest.mark.parametrize("case", CASES)
def test_every_way_of_search_gives_the_scan_and_the_definition(case: str, kind: str) -> None:
    window, expand, tokens = CASES[case]
    number = list(CASES).index(case)
    acceptance = (0.15, 0.4, 0.7, 0.5, 0.9)[(number + len(kind)) % 5]
    dtype = (torch.float32, torch.bfloat16, torch.float16)[(number + len(kind)) % 3]
    width = (16, 5, 16)[number % 3]
    model = one_tile(acceptance, window, key_width=width, dtype=dtype)
    keys = draw_keys(kind, tokens, width, torch.Generator().manual_seed(number))
    text = [1, 5, 2, 7]
    results, counts = {}, {}
    for search in WAYS:
        cache = cache_of(model, search, keys, expand=expand)
        results[search], counts[search] = decode(model, cache, text), state(cache)
        assert torch.equal(results[search], results["scan"]), search
    assert counts["sketch"][VISIBLE] >= 0.9 * min(tokens, window)  # the dtype rounds the window
    assert counts["sketch"][ACCEPTED] == counts["groups"][ACCEPTED] == counts["auto"][ACCEPTED]
    assert counts["sketch"][ACCEPTED] <= counts["sketch"][JUDGED] < counts["sketch"][VISIBLE]
    # The dense definition in fp64, from the same entries.
    exact, cache = copy.deepcopy(model).double(), cache_of(model, "scan", keys, expand=expand)
    for name, entries in cache.layers[0].entries.items():
        cache.layers[0].entries[name] = entries.double()
    with torch.no_grad():
        expected = torch.cat([exact(torch.tensor([[token]]), cache=cache) for token in text], dim=1)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 6e-2, torch.float16: 8e-3}[dtype]
    torch.testing.assert_close(
        results["auto"].double(), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
    )


def test_crops_beams_and_threads_do_not_change_the_result() -> None:
    model = one_tile(0.4, 1e12)
    keys = draw_keys("clusters", 2 * EPOCH + 5, 16, torch.Generator().manual_seed(1))
    results = {}
    for search, threads in zip(WAYS * 2, (1, 2, 1, 2, 2, 3, 3, 1), strict=True):
        cache = cache_of(model, search, keys, batch=2)
        parts = [decode(model, cache, [1, 2, 3], threads)]
        cache.crop(8)  # back into a full epoch, whose groups are made again
        parts.append(decode(model, cache, [4, 5, 6, 0, 1, 2, 3, 3], threads))
        cache.crop(torch.tensor([2, EPOCH]))  # rows of different lengths
        parts.append(decode(model, cache, [6, 7], threads))
        cache.select(torch.tensor([1, 0, 0]))
        parts.append(decode(model, cache, [1, 0, 4], threads)[:2])
        with torch.no_grad():  # two tokens through the modules, left-padded in one row
            keep = torch.tensor([[True, True], [False, True], [True, True]])
            model(torch.tensor([[1, 2], [0, 3], [5, 5]]), cache=cache, keep=keep)
        parts.append(decode(model, cache, [2, 3], threads)[:2])
        results[search, threads] = torch.cat(parts, dim=1)
        assert torch.equal(results[search, threads], results["scan", 1]), (search, threads)


def test_one_key_in_memory_that_held_many() -> None:
    model = one_tile(0.4, 1e12)
    keys = draw_keys("clusters", 2 * EPOCH, 16, torch.Generator().manual_seed(6))
    keys[0] = torch.from_numpy(query(model, 1)).float()  # accepted
    results = {}
    for search in (*WAYS, "moments"):
        cache = cache_of(model, search, keys)  # type: ignore[arg-type]
        decode(model, cache, [2])
        cache.crop(2 * EPOCH)  # of 2 * EPOCH + 1 tokens
        results[search] = decode(model, cache, [1, 3, 1])
        assert state(cache)[VISIBLE] == 4
        assert state(cache)[ACCEPTED] >= 2
        torch.testing.assert_close(results[search], results["scan"], rtol=1e-6, atol=1e-6)
        if search != "moments":
            assert torch.equal(results[search], results["scan"])


def boundary_keys(q: np.ndarray, threshold: float, count: int, seed: int) -> np.ndarray:
    """Unit keys whose score with q is within 1e-6 of the threshold."""
    random = np.random.default_rng(seed)
    across = random.standard_normal((count, len(q)))
    across -= across @ q[:, None] * q
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    score = threshold + random.uniform(-1e-6, 1e-6, (count, 1))
    return np.asarray(score * q + np.sqrt(1 - score**2) * across)


def tight_keys(q: np.ndarray, threshold: float, draws: int, seed: int) -> np.ndarray:
    """Unit keys just above the threshold for which the bound of the sketch is an equality: k - k^ is parallel to q."""
    near = boundary_keys(q, threshold, draws, seed)
    sketch = np.rint(127 * near) / 127
    b, c = sketch @ q, (sketch**2).sum(1) - 1
    square = b**2 - c
    e = -b + np.sqrt(np.maximum(square, 0))
    score = b + e
    fits = (
        (square > 0)
        & (e > 0)
        & (e * np.abs(q).max() < 0.499 / 127)
        & (score > threshold + 1e-6)
        & (score < threshold + 5e-5)
    )
    return np.asarray((sketch + e[:, None] * q)[fits])


@pytest.mark.parametrize("acceptance", [0.3, 0.85])
def test_no_key_at_the_threshold_is_missed_and_a_sketch_that_lies_by_one_unit_is_noticed(acceptance: float) -> None:
    model = one_tile(acceptance, 1e12)
    threshold = float(np.float32(1) - model.scalars()[0]["acceptance"].float().item())
    tight = np.concatenate([tight_keys(query(model, token), threshold, 400_000, token) for token in range(2)])
    near = np.concatenate([boundary_keys(query(model, token), threshold, EPOCH, token) for token in range(TOKENS)])
    assert len(tight) > 100
    keys = torch.from_numpy(np.concatenate((tight, near))).float()
    found: dict[str, Tensor] = {}
    accepted: dict[str, list[int]] = {}
    for search in WAYS:
        cache = cache_of(model, search, keys)
        found[search], accepted[search] = torch.empty(1, 0, TOKENS), []
        for token in range(TOKENS):
            found[search] = torch.cat((found[search], decode(model, cache, [token])), dim=1)
            accepted[search].append(state(cache)[ACCEPTED])
        assert torch.equal(found[search], found["scan"])
        assert accepted[search] == accepted["scan"]  # a key at the threshold has next to no weight
    assert min(accepted["scan"]) > EPOCH / 4
    honest = cache_of(model, "sketch", keys)
    decode(model, honest, [2])
    assert honest.layers[0].prepared is not None
    blocks = honest.layers[0].prepared.search[0, : len(keys) // 16 * 272].view(-1, 272)
    blocks[:, 256:] -= 1  # the errors of 16 keys follow their 16 bytes each
    honest.crop(1)
    assert not torch.equal(decode(model, honest, [0, 1]), found["sketch"][:, :2])


def test_groups_that_claim_to_be_smaller_are_noticed() -> None:
    model = one_tile(0.3, 1e12)
    keys = draw_keys("clusters", EPOCH + 100, 16, torch.Generator().manual_seed(4))
    for token in range(TOKENS):  # every token accepts some clusters
        q = torch.from_numpy(query(model, token)).float()
        keys[token * 100 : token * 100 + 50] = q + 0.22 * torch.randn(
            50, 16, generator=torch.Generator().manual_seed(token)
        )
    scan = decode(model, cache_of(model, "scan", keys), list(range(TOKENS)))
    cache = cache_of(model, "groups", keys)
    assert torch.equal(decode(model, cache, list(range(TOKENS))), scan)
    assert 0 < state(cache)[OPENED] < EPOCH
    assert cache.layers[0].prepared is not None
    centres = cache.layers[0].prepared.search[0, -64 * 448 :].view(64, 448)[:, 256:].view(torch.float32)
    centres[:, 16:32] = 1.0  # cosines of the radii
    centres[:, 32:] = 0.0
    cache.crop(TOKENS)
    assert not torch.equal(decode(model, cache, list(range(TOKENS))), scan)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["avx2", "plain"])
def test_other_variants_miss_no_key(variant: str) -> None:
    if variant not in library.instruction_sets():
        pytest.skip(f"this machine cannot run {variant}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "missed or crops",
    ]
    environment = {**os.environ, "KEYSIFT_ISA": variant}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_new_key_that_is_not_finite_makes_its_row_nan() -> None:
    model = one_tile(0.4, 1e12)
    cache = cache_of(model, "sketch", draw_keys("random", 5_000, 16, torch.Generator().manual_seed(1)))
    decode(model, cache, [1])
    with torch.no_grad():
        model.get_parameter("layers.0.tiles.k_proj.weight").fill_(math.nan)
    assert decode(model, cache, [2]).isnan().all()
    with torch.no_grad():
        assert "not finite" in model.explain_decode(torch.tensor([[3]]), cache=cache)


def test_auto_scans_where_many_keys_are_accepted_and_groups_where_they_cluster() -> None:
    modes = {}
    for acceptance, kind in ((0.95, "random"), (0.2, "random"), (0.2, "duplicates")):
        model = one_tile(acceptance, 1e12)
        keys = draw_keys(kind, 2 * EPOCH + 100, 16, torch.Generator().manual_seed(2))
        cache = cache_of(model, "auto", keys)
        decode(model, cache, [0, 1, 2, 3, 4])
        modes[acceptance, kind] = state(cache)
    assert modes[0.95, "random"][JUDGED] == modes[0.95, "random"][VISIBLE]
    assert modes[0.2, "random"][JUDGED] < 0.05 * modes[0.2, "random"][VISIBLE]
    assert modes[0.2, "duplicates"][OPENED] < 0.05 * 2 * EPOCH
    assert modes[0.2, "duplicates"][4] == 2 * EPOCH  # both epochs were searched by groups


def test_keys_are_counted_for_decoded_tokens_only() -> None:
    model = one_tile(0.4, 1e12)
    keys = draw_keys("random", 5_000, 16, torch.Generator().manual_seed(2))
    cache = cache_of(model, "sketch", keys, batch=2)
    assert cache.key_counts() == [None]
    decode(model, cache, [1])
    (counts,) = cache.key_counts()
    assert counts is not None
    q = query(model, 1)
    new = cache.layers[0].entries["k"][0, 5_000].double().numpy()
    scores = np.vstack((keys.double().numpy(), new)) @ q
    unit = scores / np.maximum(np.linalg.norm(np.vstack((keys.double().numpy(), new)), axis=1), 1e-12)
    assert counts.in_window.tolist() == [[5_001], [5_001]]
    assert counts.accepted.tolist() == [[int((unit > 0.6).sum())]] * 2
    assert bool((counts.read < 500).all())
    with torch.no_grad():
        model(torch.tensor([[1, 2], [3, 4]]), cache=cache)  # through the modules
    assert cache.key_counts() == [None]


def test_an_unknown_search_is_refused() -> None:
    with refuses("search must be one of auto, scan, sketch, groups, moments, got 'tree'", RangeError):
        Inference(search="tree")  # type: ignore[arg-type]
