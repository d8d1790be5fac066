"""`inspect`: compute every diagnostic of a model on some texts and return one record.

In order: check the texts, calibrate each head on unrelated text, read every text once for the row diagnostics, then run
the experiments on relative relevance.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from keysift.core import memory, provenance
from keysift.core.errors import RangeError
from keysift.lens.collector import Collector
from keysift.lens.diagnostics.absolute_percentile import LEVELS, Calibration, calibrate
from keysift.lens.diagnostics.acceptance import acceptance_test
from keysift.lens.diagnostics.text_maps import MapCollector
from keysift.lens.experiments.dilution import dilution
from keysift.lens.experiments.leave_out import leave_out
from keysift.lens.experiments.nothing_relevant import nothing_relevant
from keysift.lens.experiments.repeated_tokens import repeated_tokens
from keysift.lens.experiments.swap import swap_mechanism
from keysift.lens.experiments.top_keys import top_keys
from keysift.lens.findings.all_findings import findings
from keysift.lens.head_statistics import heads_of
from keysift.lens.layer_view import CELLS, LayerView
from keysift.lens.model import LensModel, Progress, TextSet, bits_per_byte, encode_text, losses, no_progress
from keysift.mechanisms.softmax import SOFTMAX
from keysift.records.lens import Record, Text

EXCERPT = 128  # tokens of each text in experiments that run the model once per layer or per number of keys
BEGINNING = 40  # characters of a text that a record shows
EXAMPLES = 20  # bright keys below unrelated text that a record names
MAPPED = 4  # texts and swaps whose maps a record holds
Maps = dict[int, MapCollector]  # by the number of the text


def inspect(
    model: LensModel,
    texts: Mapping[str, str] | Sequence[str],
    *,
    tokens: int | None = None,
    batch: int = 1,
    sample: int = 16,
    seed: int = 0,
    tests: bool = True,
    each_head: bool = False,
    swap: Sequence[str] = (),
    maps: bool = True,
    maps_share: float = 1.0,
    progress: Progress = no_progress,
) -> Record:
    """The record of a model on texts, `batch` texts at a time.

    tokens     read at most this many tokens of each text
    sample     rows of each context bucket for the expensive diagnostics (collector.py)
    tests      also run the experiments on relative relevance
    each_head  also search the fewest keys that each head needs: several runs of the model per head
    swap       also run the model with these mechanisms on its own scores
    maps       store the attention maps of the first texts, and of the first text with each swap
    maps_share share of the size limits that all maps may use
    """
    start_time = time.monotonic()
    for name, value, least in (("batch", batch, 1), ("sample", sample, 0), ("tokens", tokens, 2)):
        if value is not None and value < least:
            raise RangeError(f"{name} must be at least {least}, got {value}")
    by_name = texts if isinstance(texts, Mapping) else {f"text {i + 1}": text for i, text in enumerate(texts)}
    ids = {name: encode_text(model, name, text, tokens) for name, text in by_name.items()}
    _check_memory(model, ids, batch)
    _check_swaps(model, next(iter(ids.values()))[:2], swap)
    longest = max(map(len, ids.values()))
    calibration = calibrate(model, longest) if tests else None
    collector = Collector(longest, sample=sample, seed=seed, calibration=calibration)
    mapped = _map_collectors(model, ids, len(swap), share=maps_share) if maps else {}
    text_losses = _collect(model, ids, batch, collector, progress, mapped)
    text_set = TextSet(model, list(ids.values()), batch)
    for name, by_layer in repeated_tokens(text_set, seed).items():
        for layer, value_H in by_layer.items():
            collector.layers[layer].whole[name] = value_H.numpy()
    swaps = [_swap(model, ids, batch, name, seed, progress, maps, len(swap)) for name in swap]
    record = Record(
        model=model.info,
        texts=tuple(_text(model, name, ids[name], loss) for name, loss in text_losses.items()),
        lengths=tuple((2**k, 2 ** (k + 1) - 1) for k in range(collector.buckets)),
        heads=heads_of(collector.layers),
        tests=_experiments(text_set, collector, calibration, each_head, progress) if calibration else {},
        swaps=tuple(result for result, _ in swaps),
        maps=(
            *(collected.maps(text) for text, collected in mapped.items()),
            *(
                collected.maps(0, name)
                for name, (_, by_text) in zip(swap, swaps, strict=True)
                for collected in by_text.values()
            ),
        ),
        made={"cpu": provenance.cpu(), "commit": provenance.commit(), "sample": sample, "seed": seed},
    )
    return record.with_findings(findings(record), seconds=time.monotonic() - start_time)


def _text(model: LensModel, name: str, ids: Sequence[int], loss: float) -> Text:
    return Text(
        name=name,
        tokens=len(ids),
        loss=loss,
        bits_per_byte=bits_per_byte(model, ids, loss),
        beginning=" ".join(model.decode(ids).split())[:BEGINNING],
    )


def _collect(
    model: LensModel,
    ids: Mapping[str, Sequence[int]],
    batch: int,
    collector: Collector,
    progress: Progress,
    maps: Maps,
    swap: str | None = None,
) -> dict[str, float]:
    """Show every layer of every text to the collectors; returns the losses by text."""
    names, done = list(ids), 0
    loss_by_name: dict[str, float] = {}
    total = len(model.info.heads) * -(-len(names) // batch)

    def visit(view: LayerView) -> Tensor | None:
        nonlocal done
        used = view if swap is None else swap_mechanism(view, swap)
        collector.visit(used)
        for text in range(len(view.padding)):
            if collector.text_offset + text in maps:
                maps[collector.text_offset + text].visit(used, text)
        done += 1
        progress(swap or "layers", done, total)
        return None if swap is None else used.output(lambda block: block.weights_HTS)

    for start in range(0, len(names), batch):
        collector.text_offset = start
        batch_names = names[start : start + batch]
        texts = [ids[name] for name in batch_names]
        loss_by_name |= dict(zip(batch_names, losses(model, model.run(texts, visit), texts), strict=True))
    return loss_by_name


def _map_collectors(
    model: LensModel, ids: Mapping[str, Sequence[int]], swaps: int, only: int = MAPPED, share: float = 1.0
) -> Maps:
    """Collectors of the maps of the first texts. They share the size limits with those of the swaps."""
    texts = min(len(ids), only, max(1, MAPPED - swaps))
    share /= min(len(ids), max(1, MAPPED - swaps)) + swaps
    softmax = only == MAPPED and set(model.info.mechanisms) == {SOFTMAX.name}
    return {
        number: MapCollector(model.pieces(text), sum(model.info.heads), softmax=softmax, share=share)
        for number, text in enumerate(list(ids.values())[:texts])
    }


def _experiments(
    texts: TextSet, collector: Collector, calibration: Calibration, each_head: bool, progress: Progress
) -> dict[str, Any]:
    longest = max(map(len, texts.texts))
    progress("tests", 0, 4)
    results: dict[str, Any] = {
        "absolute_percentile": _percentiles(texts, collector, calibration),
        "leave_out": leave_out(texts.beginnings(EXCERPT), progress),
    }
    if collector.acceptance:
        results["acceptance"] = acceptance_test(collector.acceptance)
    progress("tests", 1, 4)
    results["dilution"] = dilution(texts, longest)
    progress("tests", 2, 4)
    results["nothing_relevant"] = nothing_relevant(texts, longest)
    progress("tests", 3, 4)
    results["functional"] = top_keys(texts.beginnings(EXCERPT), each_head=each_head, progress=progress)
    progress("tests", 4, 4)
    return results


def _percentiles(texts: TextSet, collector: Collector, calibration: Calibration) -> dict[str, Any]:
    examples = collector.examples.lowest(EXAMPLES)
    # The text of a token depends on the token before it, so the pieces of a whole text are needed.
    pieces = {at: texts.model.pieces(texts.texts[at]) for at in {example["text"] for example in examples}}
    for example in examples:
        for part in ("query", "key"):
            example[f"{part}_token"] = pieces[example["text"]][example[part]]
    return {
        "tokens": calibration.tokens,
        "levels": LEVELS,
        "scores": {str(layer): table.tolist() for layer, table in sorted(calibration.scores.items())},
        "best": {str(layer): table.tolist() for layer, table in sorted(calibration.best.items())},
        "only_relatively_bright": examples,
    }


def _swap(
    model: LensModel,
    ids: Mapping[str, Sequence[int]],
    batch: int,
    name: str,
    seed: int,
    progress: Progress,
    maps: bool,
    swaps: int,
) -> tuple[dict[str, Any], Maps]:
    collector = Collector(max(map(len, ids.values())), sample=0, seed=seed)  # no expensive diagnostics
    mapped = _map_collectors(model, ids, swaps, only=1) if maps else {}
    text_losses = _collect(model, ids, batch, collector, progress, mapped, swap=name)
    heads = [
        {"layer": head.layer, "head": head.head, "kinds": head.kinds, "values": head.values}
        for head in heads_of(collector.layers)
    ]
    return {"mechanism": name, "losses": text_losses, "heads": heads}, mapped


def _check_swaps(model: LensModel, ids: Sequence[int], swap: Sequence[str]) -> None:
    """Try every swap on two tokens, so that an unsupported one fails before the work starts."""

    def visit(view: LayerView) -> None:
        for name in swap:
            swap_mechanism(view, name)

    if swap:
        model.run([ids], visit)


def _check_memory(model: LensModel, ids: Mapping[str, Sequence[int]], batch: int) -> None:
    """Raise if logits with their softmax, and a block of scores with its temporaries, do not fit in memory."""
    longest = max(map(len, ids.values()))
    logits = 3 * batch * longest * model.info.vocabulary
    size = 4 * (logits + 24 * CELLS)
    memory.require(size, f"{longest} tokens at a time", "read fewer with --tokens, or less at a time with --batch 1")
