"""Whole models side by side: Multiscreen, a Transformer of its size, and the same Transformer with windows alone.

All in one process, taking turns: one full forward pass (logits of the last position), a training step, and one decoded
token at a given context, with the bytes of its cache. Where the lengths cross is reported whichever way it falls.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from keysift.bench.gather import Gathered, Say
from keysift.bench.mechanisms import explain_at
from keysift.bench.memory import free_bytes
from keysift.bench.record import Result, Step, at_least, at_most
from keysift.bench.subjects import EXPANDED, INFINITE_SHARE, VOCABULARY, multiscreen, open_multiscreen, transformer_like
from keysift.bench.timing import Turns, interleave, median_ratio, row, spread
from keysift.bench.training_step import SEQUENCES_AT_ONCE as DENSE_AT_ONCE
from keysift.bench.training_step import some_text, step
from keysift.bench.windowed import windowed
from keysift.core.config import config
from keysift.evaluate import agreement
from keysift.evaluate.cached import check_cache
from keysift.kernels import native
from keysift.mechanisms.softmax import SOFTMAX
from keysift.models.language import LanguageModel, count
from keysift.nn.cache import Cache
from keysift.nn.inference import Inference
from keysift.runs import machine

WINDOW = 256
# At psi 8, before a decoded token was profiled: 7 ms on a machine of that day. The target is twice that speed.
TOKENS_PER_S_BEFORE = 1 / 0.007


@config
class Sizes:
    """Targets are met or missed at the lengths of FULL."""

    psi: int = 8
    forward: tuple[int, ...] = (1024, 4096, 16_384, 65_536, 131_072)
    rounds: int = 9
    """Of anything, at most."""
    limit: float = 15.0
    """Seconds after which no more rounds of a length begin; the longest forward passes take one, their first."""
    train: tuple[int, ...] = (256, 1024, 4096)
    train_tokens: int = 8192
    """Of a training step, whatever its length."""
    decode: tuple[int, ...] = (2**10, 2**12, 2**14, 2**16, 2**18, 2**20)
    decode_from: int = 2**12
    """What the longest context is compared with."""


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
)


@dataclass(frozen=True)
class Subject:
    """A model, the choices it reads with, and whether its softmax sees every key."""

    name: str
    model: LanguageModel
    inference: Inference | None = None
    everything: bool = False

    def last_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.model.readout(self.model.hidden(tokens, inference=self.inference)[:, -1:])


def subjects(psi: int) -> dict[str, Subject]:
    """The contestants by short names. Those with infinite tiles read as after training on short texts: a window wider
    than these counts as infinite."""
    plain = multiscreen(psi)
    other = transformer_like(plain)
    share = f"{INFINITE_SHARE:.1%} of its tiles infinite"
    return {
        "plain": Subject("Multiscreen, windows as initialised", plain),
        "infinite": Subject(f"Multiscreen, {share}", multiscreen(psi, infinite=INFINITE_SHARE), EXPANDED),
        "open": Subject(
            f"Multiscreen, {share}, r = 0.92", multiscreen(psi, infinite=INFINITE_SHARE, accept=0.92), EXPANDED
        ),
        "transformer": Subject("Transformer", other, everything=True),
        "windowed": Subject(f"Transformer, windows of {WINDOW}", windowed(other, WINDOW)),
    }


def measure(sizes: Sizes, *, command: str, say: Say) -> Result:
    made = subjects(sizes.psi)
    say("checking models and backends against their definitions")
    check(made)
    found = Gathered(machine.examine(), say)
    sizes_of = (f"{one.name.split(',')[0]}: {count(one.model):,}" for one in (made["plain"], made["transformer"]))
    found.notes.append(f"parameters: {', '.join(sizes_of)}; psi = {sizes.psi}, vocabulary {VOCABULARY}")
    backends = {explain_at(SOFTMAX, length) for length in (*sizes.forward, *sizes.train)}
    found.notes.append(f"the Transformer's softmax ran on: {', '.join(sorted(backends))}")
    forward(found, sizes, made)
    training(found, sizes, made)
    decode(found, sizes, made)
    return found.result("models", command)


def check(made: Mapping[str, Subject]) -> None:
    """Raise unless the kernels agree with the definitions, and caches with full forwards."""
    if native.unusable() is None:
        agreement.check_kernel()
    for length in (64, 1024):
        backend = explain_at(SOFTMAX, length)
        agreement.no_worse_than_plain(SOFTMAX, agreement.draw(SOFTMAX, 150, 150), backend=backend)
    check_cache(open_multiscreen(4), (300, 7, 1, 1))
    check_cache(made["transformer"].model, (300, 7, 1, 1))
    check_cache(made["windowed"].model, (WINDOW, 1, 1, 1))


def forward(found: Gathered, sizes: Sizes, made: Mapping[str, Subject]) -> None:
    ratios: dict[str, dict[int, float]] = {"plain": {}, "infinite": {}, "windowed": {}}
    for length in sizes.forward:
        able = {key: one for key, one in made.items() if fits(found, one, length)}
        text = some_text(1, length)
        turns: Turns = {key: _partial(one.last_logits, text) for key, one in able.items()}
        taken = timed(found, f"forward, T = {length:,}", sizes, turns)
        add(found, "forward", length, able, taken)
        for key in ratios:
            if "transformer" in able:
                ratios[key][length] = median_ratio(taken["transformer"], taken[key])
        if len(taken["plain"]) == 1:
            found.notes.append(f"forward at T = {length:,}: one turn each")
    note_crossing(found, "forward", ratios)
    last = sizes.forward[-1]
    full = (sizes.psi, last) == (FULL.psi, FULL.forward[-1])
    for key, target in (("plain", 15.0), ("infinite", 4.0)):
        if last in ratios[key]:
            backend = explain_at(SOFTMAX, last)
            said = f"psi = {sizes.psi}, T = {last:,}, forward: {made[key].name}, against the Transformer on {backend}"
            found.targets.append(at_least(said, ratios[key][last], target, full_size=full))


def timed(found: Gathered, name: str, sizes: Sizes, turns: Turns) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = found.cell(name, lambda: interleave(turns, sizes.rounds, limit=sizes.limit))
    return taken


def fits(found: Gathered, one: Subject, length: int) -> bool:
    """Whether a forward pass fits in memory: the dense definition of softmax holds its maps as a whole."""
    if not one.everything or explain_at(SOFTMAX, length) != "dense":
        return True
    able: bool = 4 * 4 * one.model.config.heads * length**2 < 0.7 * free_bytes()
    if not able:
        found.notes.append(f"{one.name}, forward at T = {length:,}: not timed, its dense maps would not fit in memory")
    return able


def training(found: Gathered, sizes: Sizes, made: Mapping[str, Subject]) -> None:
    ratios: dict[str, dict[int, float]] = {"plain": {}, "infinite": {}, "windowed": {}}
    shown = {key: one for key, one in made.items() if key != "open"}
    for length in sizes.train:
        batch = max(1, sizes.train_tokens // length)
        text = some_text(batch, length + 1)
        turns: Turns = {key: step(one.model, text) for key, one in shown.items()}
        if length == 1024:
            turns["dense"] = step(made["transformer"].model, text, backend="dense", at_once=DENSE_AT_ONCE)
        taken = timed(found, f"training step, T = {length:,}, batch {batch}", sizes, turns)
        add(found, "training step", length, shown, taken, setting=f"batch {batch}", tokens=batch * length)
        for key in ratios:
            ratios[key][length] = median_ratio(taken["transformer"], taken[key])
        if "dense" in taken:
            size = f"{count(made['transformer'].model):,} parameters"
            said = f"T = {length:,}, training step: Transformer of {size}, against its dense definition"
            value = median_ratio(taken["dense"], taken["transformer"])
            found.targets.append(at_least(said, value, 3.0, full_size=sizes.psi == FULL.psi))
            against = f"dense definition, {DENSE_AT_ONCE} sequences at a time"
            found.rows.append(
                row(
                    "Transformer",
                    "training step",
                    length,
                    taken["transformer"],
                    setting=f"batch {batch}",
                    against=against,
                    theirs=taken["dense"],
                )
            )
    note_crossing(found, "training step", ratios)


def decode(found: Gathered, sizes: Sizes, made: Mapping[str, Subject]) -> None:
    """A Multiscreen at a short context takes turns at every context: growth is a ratio of the same rounds."""
    ratios: dict[str, dict[int, float]] = {"plain": {}, "infinite": {}, "windowed": {}}
    shown = {key: one for key, one in made.items() if key != "open"}
    first, last = sizes.decode_from, sizes.decode[-1]
    for length in sizes.decode:
        able = {key: one for key, one in shown.items() if holds(found, one, length)}
        measured = found.cell(f"decode, context {length:,}", lambda: decoded(sizes, able, length))  # noqa: B023
        taken, held = measured["seconds"], measured["bytes"]
        add(found, "decode", length, able, taken, tokens=1, held=held)
        for key in ratios:
            if key in taken and "transformer" in taken:
                ratios[key][length] = median_ratio(taken["transformer"], taken[key])
        said = f"psi = {sizes.psi}, {made['plain'].name}: decode at a context of"
        if length == last:
            full = (sizes.psi, first, last) == (FULL.psi, FULL.decode_from, FULL.decode[-1])
            growth, grown = median_ratio(taken["plain"], taken["reference"]), held["plain"] / held["reference"]
            over = f"{said} {last:,} over {first:,}"
            found.targets.append(at_most(f"{over}, time of a token", growth, 1.1, full_size=full, unit="x"))
            found.targets.append(at_most(f"{over}, bytes of cache", grown, 1.0, full_size=full, unit="x"))
        if length == first:
            speed = 1 / spread(taken["plain"]).median
            over = f"{said} {first:,}, tokens/s over {TOKENS_PER_S_BEFORE:.0f}, as before decoding was profiled"
            full = (sizes.psi, first) == (FULL.psi, FULL.decode_from)
            found.targets.append(at_least(over, speed / TOKENS_PER_S_BEFORE, 2.0, full_size=full))
    note_crossing(found, "decode", ratios)
    found.notes.append("decode: caches were filled with random keys and values, not by reading a text of that length")


def decoded(sizes: Sizes, able: Mapping[str, Subject], length: int) -> dict[str, dict[str, Any]]:
    """Seconds of a token and bytes of the cache."""
    caches = {key: filled(one, length) for key, one in able.items()} | {
        "reference": filled(able["plain"], sizes.decode_from)
    }
    models = {key: one.model for key, one in able.items()} | {"reference": able["plain"].model}
    turns: Turns = {key: _partial(decode_after, models[key], cache, cache.lengths[0]) for key, cache in caches.items()}
    taken = interleave(turns, sizes.rounds, limit=sizes.limit)
    return {"seconds": taken, "bytes": {key: cache.nbytes for key, cache in caches.items()}}


def holds(found: Gathered, one: Subject, length: int) -> bool:
    able = cache_bytes(one, length) < 0.4 * free_bytes()  # a step may copy what it reads
    if not able:
        found.notes.append(f"{one.name}, decode at {length:,}: not timed, its cache would not fit in memory")
    return able


def cache_bytes(one: Subject, length: int) -> int:
    """What a full cache holds: as many entries for each key head as it looks back, or as the text is long."""
    small = one.model.cache(1, inference=one.inference)
    decode_one(one.model, small)
    each = [(store, sum(x.shape[-1] * x.element_size() for x in store.entries.values())) for store in small.stores]
    return int(sum(size * sum(min(limit, length) for limit in store.limits) for store, size in each))


@torch.inference_mode()
def filled(one: Subject, length: int) -> Cache:
    """A cache as after `length` tokens, with room for one more: a token that made the cache grow would be timed with
    the copy. Reading the tokens would take hours; what a key holds does not change the work."""
    cache = one.model.cache(1, inference=one.inference)
    decode_one(one.model, cache)
    random = torch.Generator().manual_seed(0)
    for store in cache.stores:
        store._grow(length + 1, store.entries)
        for entries in store.entries.values():
            entries.normal_(generator=random)
    _set_length(cache, length)
    return cache


def decode_after(model: LanguageModel, cache: Cache, length: int) -> torch.Tensor:
    """The token after so many, each time anew."""
    _set_length(cache, length)
    return decode_one(model, cache)


def _set_length(cache: Cache, length: int) -> None:
    cache.lengths = cache._longest = [length]


@torch.inference_mode()
def decode_one(model: LanguageModel, cache: Cache) -> torch.Tensor:
    logits: torch.Tensor = model(torch.full((1, 1), VOCABULARY // 2), cache=cache)
    return logits


def add(
    found: Gathered,
    step_: Step,
    length: int,
    shown: Mapping[str, Subject],
    taken: Mapping[str, Sequence[float]],
    *,
    setting: str = "",
    tokens: int | None = None,
    held: Mapping[str, int] | None = None,
) -> None:
    """A row for each model, against the Transformer where it took part; `tokens` are those of one turn."""
    against = shown.get("transformer")
    for key, one in shown.items():
        rival = against is not None and key != "transformer"
        one_row = row(
            one.name,
            step_,
            length,
            taken[key],
            setting=setting,
            against="Transformer" if rival else "",
            theirs=taken["transformer"] if rival else (),
        )
        speed = tokens / one_row.seconds.median if tokens else None
        found.rows.append(replace(one_row, tokens_per_s=speed, cache_bytes=held[key] if held else None))


def note_crossing(found: Gathered, step_: Step, ratios: Mapping[str, Mapping[int, float]]) -> None:
    """From which length on each rival is faster than the Transformer."""
    names = {
        "plain": "Multiscreen, windows as initialised,",
        "infinite": f"Multiscreen, {INFINITE_SHARE:.1%} of its tiles infinite,",
        "windowed": f"Transformer, windows of {WINDOW},",
    }
    for key, by_length in ratios.items():
        if by_length:
            found.notes.append(f"{step_}: {names[key]} is {crossing(by_length)}")


def crossing(ratios: Mapping[int, float]) -> str:
    """`ratios` are the Transformer's seconds over the other's, by length."""
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
