"""Recall in texts of up to a million tokens: a text is read into a cache once, then asked several questions.

A question is one decoded token. It is cropped from the cache afterwards, so that no question sees another. Only needles
are asked for: letters that occur once in the text, as half of them do.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from keysift.core.errors import RangeError, UnsupportedError
from keysift.core.memory import require
from keysift.data.batches import IGNORE
from keysift.data.tasks.recall import Recall
from keysift.evaluate.measured_model import MeasuredModel
from keysift.evaluate.retrieval_tasks import TEST_SEED_OFFSET, recall_task
from keysift.mechanisms.screening import WINDOW_THRESHOLD
from keysift.models.language_model import LanguageModel
from keysift.nn.cache import Cache
from keysift.nn.inference import Inference
from keysift.records.evaluation import AS_TRAINED
from keysift.records.long_recall import LongCell, LongRecall
from keysift.runs import machine

LENGTHS = (2**12, 2**14, 2**16, 2**18, 2**20)
QUESTIONS = 32
PIECE = 4096  # tokens that are read together

OnAnswer = Callable[[int, str, int, int], None]  # length, setting, answers so far, all answers


def long_settings(model: LanguageModel, length: int, trained: int) -> dict[str, Inference]:
    """Settings to read `length` tokens with: expanded windows, or each scaling of RoPE that fits the length.

    Windows are expanded if they are longer than the training length and than those whose keys are rotated, because
    then the scores depend on the distance.
    """
    if any(scalars.has_learned_window for scalars in model.layer_scalars()):
        longer_than = max(trained, int(WINDOW_THRESHOLD))
        return {f"windows above {longer_than} expanded": Inference(expand_windows=longer_than)}
    factor = max(1.0, length / trained)
    scalings = {f"RoPE {name}": Inference(rope_scaling=f"{name}:factor={factor:g}") for name in ("ntk", "yarn")}
    return {AS_TRAINED: Inference(), "RoPE scaled": Inference(rope_factor=factor), **scalings}


def measure_long_recall(
    measured: MeasuredModel,
    *,
    lengths: Sequence[int] = LENGTHS,
    questions: int = QUESTIONS,
    seed: int = 0,
    command: str = "",
    on_answer: OnAnswer = lambda *progress: None,
    on_cell: Callable[[LongCell], None] = lambda cell: None,
) -> LongRecall:
    """Ask at least `questions` questions at each length and setting. `on_cell` is called with each finished cell."""
    began = time.monotonic()
    trained = measured.subject.trained_length
    if trained is None:
        raise UnsupportedError(
            f"{measured.subject.name} does not state its training length; use a run of keysift train"
        )
    task = recall_task(measured.tokenizer, seed=seed + TEST_SEED_OFFSET)
    task = replace(task, queries=task.letters, length=2 * task.hops * task.letters)  # half of the letters are needles
    if questions < 1 or min(lengths, default=0) < 2 * task.queries + 1:
        raise RangeError(
            f"recall needs at least 1 question and texts of at least {2 * task.queries + 1} tokens, "
            f"got {questions} and {min(lengths, default='no length')}"
        )
    _check_memory(measured.model, max(lengths), trained)
    cells = []
    for length in lengths:
        for setting, inference in long_settings(measured.model, length, trained).items():
            cells.append(_cell(measured.model, task, length, questions, setting, inference, on_answer))
            on_cell(cells[-1])
    return LongRecall(
        subject=measured.subject,
        chance=task.chance,
        cells=tuple(cells),
        made=machine.record_provenance(command, began),
    )


@torch.inference_mode()
def _cell(
    model: LanguageModel,
    task: Recall,
    length: int,
    questions: int,
    setting: str,
    inference: Inference,
    on_answer: OnAnswer,
) -> LongCell:
    correct = cache_bytes = 0
    reading: list[float] = []
    answering: list[float] = []
    counted: list[tuple[int, int, int]] = []
    texts = -(-questions // task.needles)
    for number in range(texts):
        tokens, targets = (torch.from_numpy(side) for side in task.row(number, length=length, needles_only=True))
        began = time.perf_counter()
        cache = read_text(model, tokens[: length - task.queries], length, inference)
        reading.append(time.perf_counter() - began)
        for at in (targets != IGNORE).nonzero()[:, 0].tolist():
            began = time.perf_counter()
            logits_11N = model(tokens[None, at : at + 1], cache=cache)
            answering.append(time.perf_counter() - began)
            correct += int(logits_11N.argmax() == targets[at])
            counted += _counts(cache)
            cache_bytes = cache.nbytes
            cache.crop(1)
            on_answer(length, setting, len(answering), texts * task.needles)
    means = [statistics.mean(numbers) for numbers in zip(*counted, strict=True)] or [None] * 3
    return LongCell(
        length=length,
        setting=setting,
        correct=correct,
        total=len(answering),
        read_seconds=statistics.median(reading),
        answer_seconds=statistics.median(answering),
        in_window=means[0],
        read=means[1],
        accepted=means[2],
        cache_bytes=cache_bytes,
    )


def read_text(model: LanguageModel, tokens_T: Tensor, length: int, inference: Inference) -> Cache:
    """A cache with these tokens and room for `length` in all, whose last token can be cropped.

    The last token is decoded, which prepares the keys, so that the first question takes no longer than the others.
    """
    cache = model.cache(1, spare=1, inference=inference)
    last = len(tokens_T) - 1
    for first in range(0, last, PIECE):
        model.fill(tokens_T[None, first : min(first + PIECE, last)], cache=cache)
        if first == 0:
            for layer in cache.layers:
                layer.reserve(length, layer.entries)
    model(tokens_T[None, last:], cache=cache)
    return cache


def _counts(cache: Cache) -> Iterable[tuple[int, int, int]]:
    """Keys in the windows, read and accepted by the latest token, over all layers; none if they are not counted."""
    layers = [counts for counts in cache.key_counts() if counts is not None]
    if len(layers) == len(cache.layers):
        yield tuple(sum(int(getattr(c, n).sum()) for c in layers) for n in ("in_window", "read", "accepted"))  # type: ignore[misc]


def _check_memory(model: LanguageModel, length: int, trained: int) -> None:
    """Raise if the longest cache, its prepared keys and sketches do not fit in memory."""
    size = 0
    for inference in long_settings(model, length, trained).values():
        cache = model.cache(1, inference=inference)
        model.hidden(torch.zeros(1, 1, dtype=torch.int64), cache=cache)
        widths = [(layer, {name: x.shape[-1] for name, x in layer.entries.items()}) for layer in cache.layers]
        # Prepared keys have a number more per key, sketches and groups about half a key.
        cached = sum(
            layer.entries_per_row(length) * (sum(width.values()) + 1.5 * width["k"] + 1) for layer, width in widths
        )
        size = max(size, int(4 * cached))
    require(size, f"a text of {length:,} tokens", "use shorter --lengths")
