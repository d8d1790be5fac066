"""Groups of keys in the forward pass of screening give what a scan gives, and agree with the definition as well.

The last 600 tokens of a row are queries; its keys are groups of 16,384 (kKeyEpoch of csrc/plan.h).
"""

import math

import pytest
import torch
from torch import Tensor

from keysift.core.errors import UnsupportedError
from keysift.kernels.attend import attend
from keysift.kernels.cpu import library
from keysift.kernels.cpu.key_groups import KeyGroups
from keysift.kernels.positions import Positions
from keysift.kernels.tiles import make_tile_call, run_tiles
from keysift.mechanisms.screening import SCREENING
from keysift.mechanisms.spec import Site
from keysift.nn.inference import Inference
from tests.machine import needs_kernel
from tests.models.test_search import draw_keys, one_tile
from tests.refusals import refuses

pytestmark = needs_kernel
EPOCH, QUERIES = 16_384, 600
KEYS = 3 * EPOCH + 100
CASES = {
    "infinite": (1e12, math.inf),
    "rotated": (100.0, math.inf),
    "fading": (2 * EPOCH + 5e3, 2 * EPOCH + 5e3),
    "fading, all keys": (5 * EPOCH, 5 * EPOCH),
}


def drawn(kind: str, acceptance: float, case: str, *, width: int = 16, tiles: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(kind))
    keys = torch.stack([draw_keys(kind, KEYS, width, generator) for _ in range(tiles)], 1)
    near = keys[torch.randint(0, KEYS, (KEYS,), generator=generator)]
    queries = near / near.norm(dim=2, keepdim=True).clamp_min(1e-6) + 0.1 * torch.randn(near.shape, generator=generator)
    values = torch.randn(KEYS, tiles * 20, generator=generator)
    window, effective = CASES[case]
    return {
        "projected": torch.cat((queries.flatten(1), keys.flatten(1), values), dim=1)[None],
        "window": torch.full((tiles,), window),
        "effective_window": torch.full((tiles,), effective),
        "acceptance": torch.full((tiles,), acceptance),
        "scale": torch.ones(tiles),
    }


def run(x: dict[str, Tensor], groups: KeyGroups | None, *, keys: int = KEYS, queries: int = QUERIES) -> Tensor:
    tiles = len(x["window"])
    site = Site(heads=tiles, key_width=(x["projected"].shape[2] // tiles - 20) // 2, value_width=20)
    call = make_tile_call(
        SCREENING,
        x["projected"][:, :keys],
        site,
        gated=False,
        scalars={name: x[name] for name in ("window", "effective_window", "acceptance")},
        scale_H=x["scale"],
        positions=Positions.counted(queries, keys),
        groups=None if groups is None else groups.handle,
    )
    with torch.no_grad():
        return run_tiles(call)


def definition(x: dict[str, Tensor]) -> Tensor:
    tiles = len(x["window"])
    width = (x["projected"].shape[2] // tiles - 20) // 2
    parts = x["projected"].double().split([tiles * width, tiles * width, tiles * 20], dim=2)
    q, k, v = (part.unflatten(2, (tiles, -1)).transpose(1, 2) for part in parts)
    scalars = {name: x[name].double() for name in ("window", "effective_window", "acceptance")}
    positions = Positions.counted(QUERIES, KEYS)
    out = attend(SCREENING, q[:, :, -QUERIES:], k, v, scalars=scalars, positions=positions, backend="dense")
    return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("kind", ["random", "clusters", "duplicates"])
@pytest.mark.parametrize("case", CASES)
def test_groups_agree_with_the_definition_as_well_as_a_scan(case: str, kind: str) -> None:
    acceptance = (0.15, 0.4, 0.7, 0.95)[(list(CASES).index(case) + len(kind)) % 4]
    x = drawn(kind, acceptance, case, width=(16, 5)[len(kind) % 2], tiles=1)
    expected = definition(x)
    errors = {
        name: float((run(x, groups).double() - expected).abs().max())
        for name, groups in (("scan", None), ("groups", KeyGroups(always=True)))
    }
    assert errors["groups"] <= 1.5 * errors["scan"] + 1e-6
    assert float(expected.abs().max()) > 0.3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_groups_of_half_precision_keys(dtype: torch.dtype) -> None:
    x = drawn("clusters", 0.4, "fading")
    x["projected"] = x["projected"].to(dtype)
    found, expected = run(x, KeyGroups(always=True)), run(x, None)
    assert not torch.equal(found, torch.zeros_like(found))
    torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("case", ["infinite", "fading"])
def test_results_do_not_depend_on_threads_or_on_earlier_calls(case: str) -> None:
    x = drawn("clusters", 0.4, case)
    results = []
    try:
        for threads in (1, 2, 3, 16):
            library.load().keysift_set_threads(None, None, threads)
            results.append(run(x, KeyGroups(always=True)))
    finally:
        library._share_threads(library.load())
    growing = KeyGroups(always=True)
    for keys in (700, EPOCH, 2 * EPOCH - 1, 2 * EPOCH + 600, 3 * EPOCH + 5):
        run(x, growing, keys=keys)
    results.append(run(x, growing))
    assert not torch.equal(results[0], run(x, None))  # groups add in another order
    for other in results[1:]:
        assert torch.equal(other, results[0])


@pytest.mark.parametrize("part", ["query", "key", "value"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_not_finite_reach_the_same_rows(part: str, number: float) -> None:
    x = drawn("clusters", 0.4, "infinite")
    row, channel = {"query": (KEYS - 10, 3), "key": (100, 2 * 16 + 3), "value": (100, 4 * 16 + 3)}[part]
    x["projected"][0, row, channel] = number
    expected = run(x, None)
    assert expected.isnan().any()
    torch.testing.assert_close(run(x, KeyGroups(always=True)), expected, equal_nan=True, rtol=2e-6, atol=2e-6)


def test_keys_at_the_threshold_are_accepted_as_by_a_scan() -> None:
    """Clusters that touch the threshold with the keys nearest to the query: 5 in 10^6 above or below it."""
    generator = torch.Generator().manual_seed(0)
    acceptance, width = 0.3, 16
    threshold = 1 - float(torch.tensor(acceptance))
    q = torch.nn.functional.normalize(torch.randn(width, generator=generator, dtype=torch.float64), dim=0)
    side = torch.randn(KEYS, width, generator=generator, dtype=torch.float64)[torch.arange(KEYS) // 64]
    side = torch.nn.functional.normalize(side - (side @ q)[:, None] * q, dim=1)
    angle = math.acos(threshold) + 0.2 * torch.rand(KEYS, 1, generator=generator, dtype=torch.float64)
    angle[::64] = math.acos(threshold + 5e-6)
    keys = angle.cos() * q + angle.sin() * side
    keys = keys[torch.randperm(KEYS, generator=generator)].float()
    x = drawn("random", acceptance, "infinite", tiles=1)
    values = torch.full((KEYS, 20), 1.0)
    x["projected"] = torch.cat((q.float().expand(KEYS, -1), keys, values), dim=1)[None]
    found, expected = run(x, KeyGroups(always=True)), run(x, None)
    assert float(expected.min()) > 0
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_auto_groups_keys_that_cluster_and_scans_others() -> None:
    for kind, acceptance, grouped in (("clusters", 0.2, True), ("random", 0.4, False), ("duplicates", 1.0, False)):
        x = drawn(kind, acceptance, "infinite", tiles=1)
        results = [run(x, groups) for groups in (None, KeyGroups(always=True), KeyGroups(always=False))]
        assert not torch.equal(results[0], results[1])
        assert torch.equal(results[2], results[1 if grouped else 0]), kind


def test_a_model_groups_keys_in_its_forward_pass_and_when_it_fills_a_cache() -> None:
    model = one_tile(0.4, 1e12)  # eight tokens, so eight keys
    tokens = torch.randint(0, 8, (1, 3 * EPOCH), generator=torch.Generator().manual_seed(0))
    hidden = {}
    with torch.inference_mode():
        for search in ("scan", "groups", "auto", "sketch"):
            inference = Inference(expand_windows=64, search=search)  # type: ignore[arg-type]
            hidden[search] = model.hidden(tokens, inference=inference)
            cached = model.hidden(tokens, cache=model.cache(1, inference=inference))
            torch.testing.assert_close(cached, hidden["scan"], rtol=5e-6, atol=5e-6)
    assert torch.equal(hidden["auto"], hidden["groups"])
    assert torch.equal(hidden["sketch"], hidden["scan"])
    assert not torch.equal(hidden["groups"], hidden["scan"])
    torch.testing.assert_close(hidden["groups"], hidden["scan"], rtol=5e-6, atol=5e-6)


def test_groups_of_a_batch_are_refused() -> None:
    x = drawn("random", 0.4, "infinite", tiles=1)
    x["projected"] = x["projected"].expand(2, -1, -1)
    with refuses("groups are of one segment of one row, but batch is 2", UnsupportedError):
        run(x, KeyGroups(always=True))
