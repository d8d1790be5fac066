"""Moments: sums over all keys minus the refused ones give what a scan gives, at least as exactly."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from keysift.kernels.cpu import library
from keysift.models.language_model import LanguageModel
from keysift.nn.cache import Cache
from tests.models.test_search import (
    ACCEPTED,
    EPOCH,
    JUDGED,
    VISIBLE,
    boundary_keys,
    cache_of,
    decode,
    draw_keys,
    one_tile,
    query,
    state,
)

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason="needs the compiled kernel")
MODE, FIRST, END = 5, 12, 13  # SearchState of csrc/search_layout.h
BY_MOMENTS, BY_MOMENTS_AND_SKETCHES = 3, 4


def lean_keys(model: LanguageModel, tokens: int, lean: float, width: int = 16) -> Tensor:
    """Random keys that lean towards the query of token 1, so that it accepts most of them."""
    keys = torch.randn(tokens, width, generator=torch.Generator().manual_seed(1))
    return keys + lean * torch.from_numpy(query(model, 1)).float()


def definition(model: LanguageModel, cache: Cache, text: list[int]) -> Tensor:
    """The dense definition in fp64, from the same entries."""
    exact = copy.deepcopy(model).double()
    for name, entries in cache.layers[0].entries.items():
        cache.layers[0].entries[name] = entries.double()
    with torch.no_grad():
        return torch.cat([exact(torch.tensor([[token]]), cache=cache) for token in text], dim=1)


CASES = {
    "infinite": (1e12, True, 2 * EPOCH + 300),
    "rotated": (100.0, True, 2 * EPOCH + 50),
    "fading": (2 * EPOCH + 99.0, False, 5 * EPOCH),
    "fading, not full": (3 * EPOCH, False, 2 * EPOCH + 77),
}


@pytest.mark.parametrize("case", CASES)
def test_moments_agree_with_the_definition_as_well_as_a_scan(case: str) -> None:
    window, expand, tokens = CASES[case]
    for acceptance, lean in ((0.999, 1.5), (0.9, 4.0), (0.4, 0.0)):
        model = one_tile(acceptance, window)
        keys = lean_keys(model, tokens, lean)
        keys[5::1000] = 0.0
        text = [1, 1, 1, 5, 1, 1, 1, 1, 1, 1, 1, 2, 1]  # more than eight keys leave a full window
        expected = definition(model, cache_of(model, "scan", keys, expand=expand), text)
        errors, counts = {}, {}
        for search in ("scan", "moments"):
            cache = cache_of(model, search, keys, expand=expand)
            errors[search] = float((decode(model, cache, text) - expected).abs().max() / expected.abs().max())
            counts[search] = state(cache)
        assert errors["moments"] < 1.5 * errors["scan"] + 2e-7, (acceptance, errors)
        assert counts["moments"][:3:2] == counts["scan"][:3:2]  # visible and accepted
        assert counts["moments"][MODE] in (BY_MOMENTS, BY_MOMENTS_AND_SKETCHES)
        assert counts["moments"][END] - counts["moments"][FIRST] > 0.9 * counts["moments"][VISIBLE]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moments_of_half_precision_caches(dtype: torch.dtype) -> None:
    model = one_tile(0.99, 1e12, key_width=5, dtype=dtype)
    keys = torch.randn(2 * EPOCH + 10, 5, generator=torch.Generator().manual_seed(1))
    keys += 2 * torch.from_numpy(query(model, 1)).float()
    found = {}
    for search in ("scan", "moments"):
        cache = cache_of(model, search, keys)
        found[search] = decode(model, cache, [1, 1, 3, 1])
    assert state(cache)[MODE] == BY_MOMENTS
    error = (found["moments"] - found["scan"]).abs().max()
    assert float(error) <= torch.finfo(dtype).eps * float(found["scan"].abs().max())


def test_a_query_that_accepts_nothing_gives_nothing() -> None:
    # The values of all keys cancel: in fp32 about 1e-3 would be left.
    model = one_tile(0.6, 1e12)
    keys = lean_keys(model, 4 * EPOCH, 0.0) * 0.02 + torch.from_numpy(query(model, 1)).float()
    far = min(range(8), key=lambda token: float(query(model, token) @ query(model, 1)))
    found = {}
    for search in ("scan", "moments"):
        cache = cache_of(model, search, keys)
        cache.layers[0].entries["v"][:] = 1.0
        found[search] = decode(model, cache, [1, 1, far])
    assert state(cache)[MODE] == BY_MOMENTS_AND_SKETCHES
    assert state(cache)[ACCEPTED] <= 1  # the new key itself
    torch.testing.assert_close(found["moments"], found["scan"], rtol=1e-6, atol=1e-6)


def test_crops_beams_and_threads() -> None:
    model = one_tile(0.98, 1e12)
    keys = lean_keys(model, 2 * EPOCH + 5, 2.0)
    results = {}
    for search, threads in (("scan", 1), ("moments", 1), ("moments", 2), ("moments", 3)):
        cache = cache_of(model, search, keys, batch=2)  # type: ignore[arg-type]
        parts = [decode(model, cache, [1, 1, 3], threads)]
        cache.crop(8)
        parts.append(decode(model, cache, [4, 5, 6, 0, 1, 2, 3, 3], threads))
        cache.crop(torch.tensor([2, EPOCH]))  # into the sums of the second row
        parts.append(decode(model, cache, [6, 7, 1], threads))
        cache.select(torch.tensor([1, 0, 0]))
        parts.append(decode(model, cache, [1, 0, 4], threads)[:2])
        with torch.no_grad():  # tokens through the modules, left-padded in one row
            keep = torch.tensor([[True, True], [False, True], [True, True]])
            model(torch.tensor([[1, 2], [0, 3], [5, 5]]), cache=cache, keep=keep)
        parts.append(decode(model, cache, [2, 3], threads)[:2])
        results[search, threads] = torch.cat(parts, dim=1)
    torch.testing.assert_close(results["moments", 1], results["scan", 1], rtol=2e-6, atol=2e-6)
    assert torch.equal(results["moments", 2], results["moments", 1])
    assert torch.equal(results["moments", 3], results["moments", 1])


def test_auto_adds_keys_little_by_little_where_most_are_accepted() -> None:
    model = one_tile(0.6, 1e12)
    keys = lean_keys(model, 2 * EPOCH + 100, 0.0) * 0.02 + torch.from_numpy(query(model, 1)).float()
    far = min(range(8), key=lambda token: float(query(model, token) @ query(model, 1)))
    expected = decode(model, cache_of(model, "scan", keys), [1] * 14 + [far] * 20 + [1] * 12)
    cache = cache_of(model, "auto", keys)
    found = [decode(model, cache, [1] * 14)]
    counts = state(cache)
    assert 10 * 64 <= counts[END] - counts[FIRST] <= 13 * 64
    # Groups take the memory of the moments, and later moments that of the groups.
    found.append(decode(model, cache, [far] * 20))
    assert state(cache)[4] == 2 * EPOCH  # keys of epochs that were searched by groups
    found.append(decode(model, cache, [1] * 12))
    assert state(cache)[MODE] in (BY_MOMENTS, BY_MOMENTS_AND_SKETCHES)
    assert state(cache)[END] > 64
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=5e-6, atol=5e-6)


def test_sums_and_sketches_that_lie_are_noticed() -> None:
    model = one_tile(0.85, 1e12)
    threshold = float(np.float32(1) - model.scalars()[0]["acceptance"].float().item())
    q = query(model, 1)
    near = boundary_keys(q, threshold, 300_000, 3)
    # The bound from below is an equality if k - k^ is opposite to q.
    sketch = np.rint(127 * near) / 127
    b, c = sketch @ q, (sketch**2).sum(1) - 1
    e = b - np.sqrt(np.maximum(b**2 - c, 0))
    score = b - e
    fits = (e > 0) & (e * np.abs(q).max() < 0.499 / 127) & (score < threshold - 1e-6) & (score > threshold - 5e-5)
    tight = torch.from_numpy((sketch - e[:, None] * q)[fits]).float()
    assert len(tight) > 50
    others = draw_keys("random", 3 * EPOCH, 16, torch.Generator().manual_seed(1)) * 0.01 + torch.from_numpy(q).float()
    keys = torch.cat((tight, others))
    # A model prepares a cache anew if it has decoded with other settings in between.
    scan, cache = cache_of(model, "scan", keys), cache_of(model, "moments", keys)
    expected = decode(model, scan, [1, 1, 1])
    honest = decode(model, cache, [1, 1, 1])
    torch.testing.assert_close(honest, expected, rtol=5e-6, atol=5e-6)
    assert state(cache)[MODE] == BY_MOMENTS_AND_SKETCHES
    assert state(cache)[JUDGED] < 2_000
    assert state(cache)[ACCEPTED] == state(scan)[ACCEPTED]
    prepared = cache.layers[0].prepared
    assert prepared is not None
    prepared.search[0, : len(tight) // 16 * 272].view(-1, 272)[:, 256:] -= 1  # the errors of 16 keys
    cache.crop(1)
    decode(model, cache, [1])
    assert state(cache)[ACCEPTED] > state(scan)[ACCEPTED]
    start = -(-cache.layers[0].capacity[0] // 16) * 272
    start += -start % 64
    prepared.search[0, start : start + 8 * 20].view(torch.float64).mul_(1.001)  # the sum of the values
    cache.crop(1)
    assert not torch.allclose(decode(model, cache, [1]), honest[:, 2:], rtol=1e-6, atol=1e-6)
