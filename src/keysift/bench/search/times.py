"""Benchmark of exact search: one query of a tile with an infinite window, by context, and a whole model.

`plain kernel` judges every key of the cache as it is stored. `scan` judges every prepared key. `search` refuses keys by
a bound and judges the others (docs/search.md). They take turns in one process.
"""

import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keysift.bench.models as models
from keysift.bench.collector import Collector, Log
from keysift.bench.contestants import ModelCase
from keysift.bench.model_cases import EXPANDED, INFINITE_SHARE, matching_transformer, multiscreen
from keysift.bench.search import forward
from keysift.bench.search.cases import (
    KEY_WIDTH,
    QUERIES,
    TileCase,
    TileKeys,
    leaning_keys,
    random_keys,
    trained_tiles,
)
from keysift.bench.search.missed import DTYPES, count_missed
from keysift.bench.timing import Turns, interleave, median_ratio, quartiles, row
from keysift.core.config import config
from keysift.core.statistics import power_law_exponent
from keysift.models import text_model
from keysift.models.multiscreen import MultiscreenConfig
from keysift.nn.inference import Search
from keysift.records.bench import Result, at_least, at_most
from keysift.runs import machine


@config
class Sizes:
    """Targets apply at the contexts of FULL."""

    contexts: tuple[int, ...] = (2**12, 2**14, 2**16, 2**18, 2**20)
    text_tokens: int = 2**14
    """Tokens of each text that the trained model reads."""
    psi: int = 8
    """Size of the whole model."""
    rounds: int = 9
    limit: float = 4.0
    """Seconds after which no more rounds of a comparison begin."""
    pairs: int = 10**7
    """Of query and key at the threshold, to find missed keys."""
    checkpoints: Path = Path("checkpoints")
    """A folder. Every Multiscreen in it that has a window longer than its training length is measured."""
    forward: int = 131_072
    """Tokens of the forward pass of a whole model."""


FULL = Sizes()
QUICK = Sizes(
    contexts=(2**12, 2**15, 2**16),
    text_tokens=2**12,
    psi=4,
    rounds=3,
    limit=2.0,
    pairs=2**17,
    forward=4096,
)
RANDOM = {0.3: 25.0, 0.5: 8.0, 0.92: 3.0}  # acceptance, and the required speedup at the longest context
GROWTH_FROM = 2**16
REASONS = {
    "random keys, r = 0.3": "every sketch is read, a quarter of the bytes of the keys",
    "random keys, r =": "2% or more are accepted, so every prepared key is read",
    "growth exponent": "every sketch is read, so only tiles whose groups are refused grow slower than the context",
    "the median of": "no tile can be faster than reading the sketches or the centres of the groups of every key",
    "the slowest tile": "it accepts too many keys for sketches and too few for moments, so every prepared key is read",
    "over the scan": "where a search does not pay, both sides run the same scan, and one context of one tile decides",
    "decode at": "at r = 0.5 random keys are scanned, and the infinite tiles take nearly all of a token's time",
    "forward:": "the newest keys are scanned, values of accepted keys are read, and other tiles take time",
    "upkeep": "preparing a key once is compared with one query, which is short where search pays",
    "memory as a share": "a sketch is 17 bytes for a key of 64, and groups have centres and members",
    "missed keys": "a fault: please report it",
}
"""Why a target may be missed, by a part of its name; the first match counts."""


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    log("measuring the peaks of the machine")
    results = Collector(machine.with_peaks(machine.examine()), log)
    longest = sizes.contexts[-1]
    full = (longest, sizes.psi) == (FULL.contexts[-1], FULL.psi)
    slowest: list[float] = []
    for acceptance, target in RANDOM.items():
        speedup, _, ratios = over_contexts(results, sizes, random_keys(acceptance, longest))
        slowest += ratios
        name = f"one tile, one query, {longest:,} random keys, r = {acceptance:g}: search against the plain kernel"
        results.targets.append(at_least(name, speedup, target, full_size=full))
    slowest += over_contexts(results, sizes, leaning_keys(0.999, longest), "moments")[2]
    slowest += trained(results, sizes, full)
    name = "search over the scan of prepared keys, the slowest of all keys and contexts: time"
    results.targets.append(at_most(name, max(slowest), 1.05, full_size=full, unit="x"))
    upkeep(results, sizes, whole_model(results, sizes, full), full)
    forward.whole_forward(
        results, sizes.psi, sizes.forward, full=(sizes.psi, sizes.forward) == (FULL.psi, FULL.forward)
    )
    missed = results.measure_once(f"{sizes.pairs:,} keys at the threshold", lambda: missed_keys(sizes.pairs))
    name = (
        f"missed keys among {sizes.pairs:,} with scores within 1e-6 of the threshold, by any way of search, all dtypes"
    )
    results.targets.append(at_most(name, missed, 0.0, full_size=full))
    for checked in results.targets:
        if checked.met is False:
            reason = next((reason for part, reason in REASONS.items() if part in checked.name), "no known reason")
            results.notes.append(f"missed, {checked.name}: {reason}")
    return results.result("search", command)


def over_contexts(
    results: Collector, sizes: Sizes, tile: TileKeys, search: Search = "auto"
) -> tuple[float, float, list[float]]:
    """Add rows for each context.

    Returns the speedup against the plain kernel at the longest, the growth exponent, and at every context the time of
    search over that of the scan.
    """
    medians, ratios, speedup = {}, [], 1.0
    for length in sizes.contexts:
        measured = results.measure_once(
            f"{tile.name}, context {length:,}", partial(time_tile, sizes, tile, length, search)
        )
        times, shares = measured["seconds"], measured["shares"]
        medians[length] = quartiles(times["search"]).median
        ratios.append(median_ratio(times["search"], times["scan"]))
        speedup = median_ratio(times["plain"], times["search"])
        for key, against in (("plain", "plain kernel"), ("scan", "scan of prepared keys")):
            setting = f"{search}: accepted {shares['accepted']:.2%}, read {shares['read']:.2%}"
            timed = row(
                tile.name, "decode", length, times["search"], setting=setting, against=against, theirs=times[key]
            )
            if results.machine.read_gb_per_s:  # as if every key were read
                share = 4e-9 * tile.keys.shape[1] * length / timed.seconds.median / results.machine.read_gb_per_s
                timed = replace(timed, read_share=share)
            results.rows.append(timed)
    growing = [(length, seconds) for length, seconds in medians.items() if length >= GROWTH_FROM]
    return speedup, power_law_exponent(growing) if len(growing) > 1 else 0.0, ratios


def time_tile(sizes: Sizes, tile: TileKeys, length: int, way: Search) -> dict[str, Any]:
    """Seconds of a query, and the mean shares of keys that the search read and accepted."""
    scan, search = TileCase(tile, length, "scan"), TileCase(tile, length, way)
    turns: Turns = {"plain": scan.decode_through_modules, "scan": scan.decode, "search": search.decode}
    scan.decode()  # prepares every key, which takes seconds
    for _ in range(2 * QUERIES):  # until the estimate knows the tile
        search.decode()
    times = interleave(turns, sizes.rounds, limit=sizes.limit)
    counted = []
    for _ in range(QUERIES):
        search.decode()
        counted.append(search.counts())
    shares = {
        name: statistics.mean(counts[name] / counts["in_window"] for counts in counted) for name in ("read", "accepted")
    }
    return {"seconds": times, "shares": shares}


def trained(results: Collector, sizes: Sizes, full: bool) -> list[float]:
    """Add rows and targets for the long tiles of a trained model. Returns times of search over those of the scan."""
    tiles = []
    for folder in sorted(sizes.checkpoints.glob("*/config.json")):
        opened = text_model.open(folder.parent)
        if isinstance(opened.model.config, MultiscreenConfig):
            results.log(f"reading texts of {sizes.text_tokens:,} tokens with {folder.parent}")
            tiles += trained_tiles(folder.parent.name, opened, text_tokens=sizes.text_tokens, count=sizes.contexts[-1])
    if not tiles:
        results.notes.append(f"trained tiles: not measured, no Multiscreen in {sizes.checkpoints} has a long window")
        return []
    speedups, growth, ratios = {}, {}, []
    for tile in tiles:
        speedups[tile.name], growth[tile.name], slower = over_contexts(results, sizes, tile)
        ratios += slower
    worst, best = min(speedups, key=speedups.__getitem__), max(speedups, key=speedups.__getitem__)
    results.notes.append(
        f"trained keys: every tile of the models in {sizes.checkpoints} with an expanded window; keys of texts of "
        f"{sizes.text_tokens:,} tokens one after the other (recall: random symbols; text: Python's standard library), "
        f"queries of the last positions; "
        f"the fastest is {best}"
    )
    where = f"one tile, one query, {sizes.contexts[-1]:,} trained keys"
    for name, value, target in (
        (f"the median of {len(tiles)} tiles", statistics.median(speedups.values()), 60.0),
        (f"the slowest tile ({worst})", speedups[worst], 2.0),
    ):
        results.targets.append(
            at_least(f"{where}, {name}: search against the plain kernel", value, target, full_size=full)
        )
    name = f"{where}: growth exponent from {GROWTH_FROM:,} keys on, the median of {len(tiles)} tiles"
    results.targets.append(at_most(name, statistics.median(growth.values()), 0.7, full_size=full))
    return ratios


def whole_model(results: Collector, sizes: Sizes, full: bool) -> float:
    """Add rows and a target for a decoded token of a whole model. Returns the seconds of a token."""
    length = sizes.contexts[-1]
    plain = multiscreen(sizes.psi)
    name = f"Multiscreen, {INFINITE_SHARE:.1%} of its tiles infinite, r = 0.5"
    cases = {
        "plain": ModelCase("Multiscreen, windows as initialised", plain),
        "infinite": ModelCase(name, multiscreen(sizes.psi, infinite=INFINITE_SHARE), EXPANDED),
        "transformer": ModelCase("Transformer", matching_transformer(plain), full_softmax=True),
    }
    timing = models.Sizes(psi=sizes.psi, rounds=sizes.rounds, limit=sizes.limit, decode_from=sizes.contexts[0])
    measured = results.measure_once(
        f"decode, psi = {sizes.psi}, context {length:,}", lambda: models.time_decoding(timing, cases, length)
    )
    times = measured["seconds"]
    models.add_rows(results, "decode", length, cases, times, tokens=1, cache_sizes=measured["bytes"])
    value = median_ratio(times["transformer"], times["infinite"])
    target = f"psi = {sizes.psi}, decode at {length:,} random keys: {name}, against the Transformer"
    results.targets.append(at_least(target, value, 15.0, full_size=full))
    return quartiles(times["infinite"]).median


def upkeep(results: Collector, sizes: Sizes, token_seconds: float, full: bool) -> None:
    """Add targets for the time to sketch and group a key, and for the memory."""
    length, tiles = sizes.contexts[-1], round(INFINITE_SHARE * sizes.psi**2)
    measured = results.measure_once("upkeep of sketches and groups", lambda: time_upkeep(length))
    share = max(measured["seconds"], 0.0) / length * tiles / token_seconds
    name = f"upkeep of {tiles} infinite tiles: share of a token's time, psi = {sizes.psi}, context {length:,}"
    results.targets.append(at_most(name, 100 * share, 3.0, full_size=full, unit="%"))
    name = f"sketches and groups: memory as a share of {length:,} keys in fp32"
    results.targets.append(at_most(name, 100 * measured["memory"], 35.0, full_size=full, unit="%"))


def time_upkeep(length: int) -> dict[str, float]:
    """Seconds to sketch and group keys beyond preparing them, and bytes per byte of the keys. The least of three."""
    tile = random_keys(0.3, length)
    seconds: dict[Search, list[float]] = {"scan": [], "auto": []}
    memory = 0.0
    for _ in range(3):
        for search, samples in seconds.items():
            case = TileCase(tile, length, search)
            began = time.perf_counter()
            case.decode()  # prepares every key
            samples.append(time.perf_counter() - began)
            memory = case.search_bytes() / (4 * KEY_WIDTH * length)
    return {"seconds": min(seconds["auto"]) - min(seconds["scan"]), "memory": memory}


def missed_keys(pairs: int) -> int:
    """Keys that some way of search misses, on the instruction set in use."""
    found = [count_missed(-(-pairs // len(DTYPES)), dtype) for dtype in DTYPES.values()]
    return sum(count for each in found for name, count in each.items() if name not in ("pairs", "accepted"))
