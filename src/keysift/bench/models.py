"""Benchmark of whole models: Multiscreen against Transformers of the same size.

The Transformer runs as it is, under torch.compile, and with sliding windows: what a user could pick instead.

The models take turns in one process: a forward pass (logits of the last position), a training step, and a decoded token
at a given context, with the bytes of its cache. Notes say from which length on each model is faster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from keysift.bench.collector import Collector, Log
from keysift.bench.contestants import ModelCase, build_cases, without_compiler
from keysift.bench.mechanisms import chosen_backend
from keysift.bench.model_cases import INFINITE_SHARE, VOCABULARY, open_multiscreen
from keysift.bench.model_memory import measure_memory
from keysift.bench.peak_memory import free_bytes
from keysift.bench.timing import Turns, interleave, median_ratio, quartiles, row
from keysift.bench.training_step import SEQUENCES_AT_ONCE as DENSE_AT_ONCE
from keysift.bench.training_step import random_tokens, step
from keysift.core.config import config
from keysift.kernels.cpu import library
from keysift.mechanisms.softmax import SOFTMAX
from keysift.models.language_model import LanguageModel, count_parameters
from keysift.nn.cache import Cache
from keysift.records.bench import Result, Step, at_least, at_most
from keysift.runs import machine
from keysift.verify import agreement
from keysift.verify.cache_equality import check_cache


@config
class Sizes:
    """Targets apply at the lengths of FULL."""

    psi: int = 8
    forward: tuple[int, ...] = (1024, 4096, 16_384, 65_536, 131_072)
    compiled_forward: int = 16_384
    """Longest forward pass of the compiled Transformer."""
    rounds: int = 9
    """Maximum for every comparison."""
    limit: float = 15.0
    """Seconds after which no more rounds of a length begin. The longest forward passes have a single round."""
    train: tuple[int, ...] = (256, 1024, 4096)
    train_tokens: int = 8192
    """Tokens of a training step, at every length."""
    decode: tuple[int, ...] = (2**10, 2**12, 2**14, 2**16, 2**18, 2**20)
    decode_from: int = 2**12
    """The context that the longest one is compared with."""
    memory_tokens: int = 1024
    """Length of the training step whose peak memory is measured."""


FULL = Sizes()
QUICK = Sizes(
    psi=4,
    forward=(512, 2048),
    rounds=2,
    limit=5.0,
    train=(256,),
    train_tokens=512,
    decode=(2**10, 2**12),
    decode_from=2**10,
    memory_tokens=256,
)


def measure(sizes: Sizes, *, command: str, log: Log) -> Result:
    cases = build_cases(sizes.psi)
    log("checking models and backends against their definitions")
    check(cases)
    results = Collector(machine.examine(), log)
    cases = without_compiler(results, cases)
    sizes_of = (
        f"{case.name.split(',')[0]}: {count_parameters(case.model):,}"
        for case in (cases["plain"], cases["transformer"])
    )
    results.notes.append(f"parameters: {', '.join(sizes_of)}; psi = {sizes.psi}, vocabulary {VOCABULARY}")
    backends = {chosen_backend(SOFTMAX, length) for length in (*sizes.forward, *sizes.train)}
    results.notes.append(f"the Transformer's softmax ran on: {', '.join(sorted(backends))}")
    forward(results, sizes, cases)
    training(results, sizes, cases)
    decode(results, sizes, cases)
    measure_memory(results, sizes.psi, sizes.forward[-1], sizes.memory_tokens, sizes.train_tokens)
    return results.result("models", command)


def check(cases: Mapping[str, ModelCase]) -> None:
    """Raise unless kernels agree with the definitions, and decoding from a cache with the full forward pass."""
    if library.unavailable() is None:
        agreement.check_kernel()
    for length in (64, 1024):
        backend = chosen_backend(SOFTMAX, length)
        agreement.check_agreement(SOFTMAX, agreement.draw_inputs(SOFTMAX, 150, 150), backend=backend)
    check_cache(open_multiscreen(4), (300, 7, 1, 1))
    for key in ("transformer", "windowed"):
        check_cache(cases[key].model, (300, 7, 1, 1))


def forward(results: Collector, sizes: Sizes, cases: Mapping[str, ModelCase]) -> None:
    ratios: dict[str, dict[int, float]] = {"plain": {}, "infinite": {}}
    against_windows: dict[int, float] = {}
    for length in sizes.forward:
        short = length <= sizes.compiled_forward
        fitting = {
            key: case for key, case in cases.items() if (short or not case.compiled) and fits(results, case, length)
        }
        text = random_tokens(1, length)
        turns: Turns = {key: _partial(case.last_logits, text) for key, case in fitting.items()}
        if "compiled" in turns:
            turns["compiled"]()  # compile now, or the warmup would count as a round
        times = time_in_turns(results, f"forward, T = {length:,}", sizes, turns)
        add_rows(results, "forward", length, fitting, times)
        against_windows[length] = median_ratio(times["windowed"], times["plain"])
        for key in ratios:
            if "transformer" in fitting:
                ratios[key][length] = median_ratio(times["transformer"], times[key])
        if len(times["plain"]) == 1:
            results.notes.append(f"forward at T = {length:,}: one run each")
    if any(length > sizes.compiled_forward for length in sizes.forward):
        results.notes.append(
            f"Transformer, torch.compile: forward timed up to T = {sizes.compiled_forward:,}; beyond it, attention, "
            f"which runs the same kernel, takes nearly all of the time"
        )
    note_crossover(results, "forward", ratios)
    last = sizes.forward[-1]
    full = (sizes.psi, last) == (FULL.psi, FULL.forward[-1])
    name = f"psi = {sizes.psi}, T = {last:,}, forward: {cases['plain'].name}, against the {cases['windowed'].name}"
    results.targets.append(at_least(name, against_windows[last], 2.8, full_size=full))
    for key, target in (("plain", 38.0), ("infinite", 4.0)):
        if last in ratios[key]:
            backend = chosen_backend(SOFTMAX, last)
            name = f"psi = {sizes.psi}, T = {last:,}, forward: {cases[key].name}, against the Transformer on {backend}"
            results.targets.append(at_least(name, ratios[key][last], target, full_size=full))


def time_in_turns(results: Collector, name: str, sizes: Sizes, turns: Turns) -> dict[str, list[float]]:
    times: dict[str, list[float]] = results.measure_once(
        name, lambda: interleave(turns, sizes.rounds, limit=sizes.limit)
    )
    return times


def fits(results: Collector, case: ModelCase, length: int) -> bool:
    """Whether a forward pass fits in memory. The dense definition of softmax holds its maps as a whole."""
    if not case.full_softmax or chosen_backend(SOFTMAX, length) != "dense":
        return True
    fitting: bool = 4 * 4 * case.model.config.heads * length**2 < 0.7 * free_bytes()
    if not fitting:
        results.notes.append(
            f"{case.name}, forward at T = {length:,}: not timed, its dense maps would not fit in memory"
        )
    return fitting


def training(results: Collector, sizes: Sizes, cases: Mapping[str, ModelCase]) -> None:
    ratios: dict[str, dict[int, float]] = {"plain": {}, "infinite": {}}
    timed_cases = {key: case for key, case in cases.items() if key != "open"}
    for length in sizes.train:
        batch = max(1, sizes.train_tokens // length)
        text = random_tokens(batch, length + 1)
        turns: Turns = {key: step(case.model, text, compiled=case.compiled) for key, case in timed_cases.items()}
        if "compiled" in turns:
            turns["compiled"]()  # compile now, or the warmup would count as a round
        if length == 1024:
            turns["dense"] = step(cases["transformer"].model, text, backend="dense", at_once=DENSE_AT_ONCE)
        times = time_in_turns(results, f"training step, T = {length:,}, batch {batch}", sizes, turns)
        add_rows(results, "training step", length, timed_cases, times, setting=f"batch {batch}", tokens=batch * length)
        for key in ratios:
            ratios[key][length] = median_ratio(times["transformer"], times[key])
        if "dense" in times:
            size = f"{count_parameters(cases['transformer'].model):,} parameters"
            name = f"T = {length:,}, training step: Transformer of {size}, against its dense definition"
            value = median_ratio(times["dense"], times["transformer"])
            results.targets.append(at_least(name, value, 3.0, full_size=sizes.psi == FULL.psi))
            against = f"dense definition, {DENSE_AT_ONCE} sequences at a time"
            results.rows.append(
                row(
                    "Transformer",
                    "training step",
                    length,
                    times["transformer"],
                    setting=f"batch {batch}",
                    against=against,
                    theirs=times["dense"],
                )
            )
    note_crossover(results, "training step", ratios)


def decode(results: Collector, sizes: Sizes, cases: Mapping[str, ModelCase]) -> None:
    """A Multiscreen at a short context takes turns at every length, so growth is a ratio within the same rounds."""
    ratios: dict[str, dict[int, float]] = {"plain": {}, "infinite": {}}
    timed_cases = {key: case for key, case in cases.items() if key not in ("open", "compiled")}
    first, last = sizes.decode_from, sizes.decode[-1]
    for length in sizes.decode:
        fitting = {key: case for key, case in timed_cases.items() if cache_fits(results, case, length)}
        measured = results.measure_once(f"decode, context {length:,}", lambda: time_decoding(sizes, fitting, length))  # noqa: B023
        times, cache_sizes = measured["seconds"], measured["bytes"]
        add_rows(results, "decode", length, fitting, times, tokens=1, cache_sizes=cache_sizes)
        for key in ratios:
            if key in times and "transformer" in times:
                ratios[key][length] = median_ratio(times["transformer"], times[key])
        name = f"psi = {sizes.psi}, {cases['plain'].name}: decode at a context of"
        if length == last:
            full = (sizes.psi, first, last) == (FULL.psi, FULL.decode_from, FULL.decode[-1])
            slower = median_ratio(times["plain"], times["reference"])
            larger = cache_sizes["plain"] / cache_sizes["reference"]
            over = f"{name} {last:,} over {first:,}"
            results.targets.append(at_most(f"{over}, time of a token", slower, 1.1, full_size=full, unit="x"))
            results.targets.append(at_most(f"{over}, bytes of cache", larger, 1.0, full_size=full, unit="x"))
        if length == first:
            speed = 1 / quartiles(times["plain"]).median
            full = (sizes.psi, first) == (FULL.psi, FULL.decode_from)
            results.targets.append(at_least(f"{name} {first:,}", speed, 2500, full_size=full, unit="tokens/s"))
    note_crossover(results, "decode", ratios)
    results.notes.append("decode: caches were filled with random keys and values, not by reading a text of that length")
    results.notes.append(
        "decode: torch.compile is not timed; the length of a cache is a Python integer, so every token compiles again"
    )


def time_decoding(sizes: Sizes, fitting: Mapping[str, ModelCase], length: int) -> dict[str, dict[str, Any]]:
    """Seconds per token and bytes of the cache of each model."""
    caches = {key: filled_cache(case, length) for key, case in fitting.items()} | {
        "reference": filled_cache(fitting["plain"], sizes.decode_from)
    }
    models = {key: case.model for key, case in fitting.items()} | {"reference": fitting["plain"].model}
    turns: Turns = {key: _partial(decode_after, models[key], cache, cache.lengths[0]) for key, cache in caches.items()}
    times = interleave(turns, sizes.rounds, limit=sizes.limit)
    return {"seconds": times, "bytes": {key: cache.nbytes for key, cache in caches.items()}}


def cache_fits(results: Collector, case: ModelCase, length: int) -> bool:
    """Whether a cache of this length fits in memory. Adds a note if not."""
    fitting = cache_bytes(case, length) < 0.4 * free_bytes()  # a step may copy the entries it reads
    if not fitting:
        results.notes.append(f"{case.name}, decode at {length:,}: not timed, its cache would not fit in memory")
    return fitting


def cache_bytes(case: ModelCase, length: int) -> int:
    """Bytes of a full cache: for each key head as many entries as its window, or as the text has tokens."""
    small = case.model.cache(1, inference=case.inference)
    decode_token(case.model, small)
    total = 0.0
    for layer in small.layers:
        entry_bytes = sum(x.shape[-1] * x.element_size() for x in layer.entries.values())
        if layer.prepared is not None:
            entry_bytes += layer.prepared.blocks.shape[2] * layer.prepared.blocks.element_size()
        total += entry_bytes * sum(min(limit, length) for limit in layer.limits)
    return int(total)


@torch.inference_mode()
def filled_cache(case: ModelCase, length: int) -> Cache:
    """A cache as after `length` tokens, filled with random entries, with room for one more token.

    Reading a text of that length would take hours, and the values do not change the work. Without the room, the growth
    of the cache would be timed too. So would the preparation of all keys, without the token decoded at the end.
    """
    cache = case.model.cache(1, inference=case.inference)
    decode_token(case.model, cache)
    random = torch.Generator().manual_seed(0)
    for store in cache.layers:
        store._grow(length + 1, store.entries)
        for entries in store.entries.values():
            entries.normal_(generator=random)
    decode_after(case.model, cache, length)
    _set_length(cache, length)
    return cache


def decode_after(model: LanguageModel, cache: Cache, length: int) -> torch.Tensor:
    """Decode the token after the first `length`, from the same cache every time."""
    _set_length(cache, length)
    return decode_token(model, cache)


def _set_length(cache: Cache, length: int) -> None:
    cache.lengths = cache._longest = [length]


@torch.inference_mode()
def decode_token(model: LanguageModel, cache: Cache) -> torch.Tensor:
    logits: torch.Tensor = model(torch.full((1, 1), VOCABULARY // 2), cache=cache)
    return logits


def add_rows(
    results: Collector,
    step_: Step,
    length: int,
    cases: Mapping[str, ModelCase],
    times: Mapping[str, Sequence[float]],
    *,
    setting: str = "",
    tokens: int | None = None,
    cache_sizes: Mapping[str, int] | None = None,
) -> None:
    """Add a row for each model, against the Transformer if it was timed. `tokens` is the number of tokens per turn."""
    against = cases.get("transformer")
    for key, case in cases.items():
        rival = against is not None and key != "transformer"
        timed_row = row(
            case.name,
            step_,
            length,
            times[key],
            setting=setting,
            against="Transformer" if rival else "",
            theirs=times["transformer"] if rival else (),
        )
        speed = tokens / timed_row.seconds.median if tokens else None
        results.rows.append(
            replace(timed_row, tokens_per_s=speed, cache_bytes=cache_sizes[key] if cache_sizes else None)
        )


def note_crossover(results: Collector, step_: Step, ratios: Mapping[str, Mapping[int, float]]) -> None:
    """Add notes on the length from which each model is faster than the Transformer."""
    names = {
        "plain": "Multiscreen, windows as initialised,",
        "infinite": f"Multiscreen, {INFINITE_SHARE:.1%} of its tiles infinite,",
    }
    for key, by_length in ratios.items():
        if by_length:
            results.notes.append(f"{step_}: {names[key]} is {describe_crossover(by_length)}")


def describe_crossover(ratios: Mapping[int, float]) -> str:
    """Describe where a model is faster. `ratios` are the Transformer's seconds over the model's, by length."""
    lengths = sorted(ratios)
    faster = [length for length in lengths if ratios[length] > 1]
    if len(faster) == len(lengths):
        return f"faster than the Transformer at every length timed, {lengths[0]:,} to {lengths[-1]:,}"
    if not faster:
        return f"slower than the Transformer at every length timed, {lengths[0]:,} to {lengths[-1]:,}"
    lasting = [n for n in lengths if all(ratios[m] > 1 for m in lengths if m >= n)]
    if lasting:
        return f"faster than the Transformer from {lasting[0]:,} tokens on"
    return f"faster than the Transformer at {', '.join(f'{n:,}' for n in faster)} tokens only"


def _partial(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: function(*arguments)
