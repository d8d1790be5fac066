"""Recall rows: every answer is in the context, needles occur once, and a row does not depend on other rows."""

import numpy as np
import pytest

from keysift.data.batches import IGNORE
from keysift.data.tasks.recall import Batches, Recall
from tests.refusals import refuses

ONE_HOP = Recall()
TWO_HOPS = Recall(hops=2, letters=8, values=8, length=32, queries=4)
each_task = pytest.mark.parametrize("task", [ONE_HOP, TWO_HOPS], ids=["one hop", "two hops"])


def parse(task: Recall, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parse a row by its description: letters and values of the context, and the letters of the queries."""
    if task.hops == 1:
        pairs = tokens[: -task.queries]
        return pairs // task.values, pairs % task.values, tokens[-task.queries :] - task.letters * task.values
    letters, values = tokens[0::2], tokens[1::2] - task.letters
    return letters[: -task.queries], values[: -task.queries], letters[-task.queries :]


@each_task
@pytest.mark.parametrize("number", range(5))
def test_every_answer_is_in_the_context(task: Recall, number: int) -> None:
    tokens, targets = task.row(number)
    assert len(tokens) == len(targets) == task.length
    assert tokens.min() >= 0
    assert tokens.max() < task.vocab_size
    letters, values, queries = parse(task, tokens)
    offset = task.vocab_size - task.values
    answers = targets[targets != IGNORE] - offset
    assert len(answers) == task.queries
    counts = []
    for letter, answer in zip(queries, answers, strict=True):
        values_of_letter = values[letters == letter]
        assert set(values_of_letter) == {answer}
        counts.append(len(values_of_letter))
    assert sum(count == 1 for count in counts) >= task.needles
    assert len(set(queries)) == task.queries


@each_task
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_row_with_a_depth_queries_one_needle(task: Recall, depth: float) -> None:
    tokens, targets = task.row(7, length=4 * task.length, depth=depth)
    assert len(tokens) == 4 * task.length
    (at,) = np.flatnonzero(targets != IGNORE)
    letters, values, _ = parse(task, tokens)
    letter = tokens[at] - (task.letters * task.values if task.hops == 1 else 0)
    (position,) = np.flatnonzero(letters == letter)
    assert values[position] == targets[at] - (task.vocab_size - task.values)
    assert abs(position - depth * (len(letters) - 1)) <= 1


@each_task
def test_needles_only(task: Recall) -> None:
    length = 8 * task.length
    tokens, targets = task.row(7, length=length, needles_only=True)
    assert tokens.tolist() == task.row(7, length=length)[0].tolist()
    letters, _, _ = parse(task, tokens)
    (at,) = np.nonzero(targets != IGNORE)
    queries = tokens[at] - (task.letters * task.values if task.hops == 1 else 0)
    assert [int((letters == letter).sum()) for letter in queries] == [1] * task.needles
    assert len(np.flatnonzero(task.row(7, length=length)[1] != IGNORE)) == task.queries


def test_batches_are_the_rows_in_order() -> None:
    batches = Batches(ONE_HOP, batch_size=4)
    whole = batches.batch(3)
    halves = [batches.batch(3, part, 2) for part in range(2)]
    assert whole.inputs.tolist() == [row for half in halves for row in half.inputs.tolist()]
    assert whole.inputs[1].tolist() == ONE_HOP.row(13)[0].tolist()
    assert batches.stream_hash != Batches(Recall(seed=1), batch_size=4).stream_hash
    assert batches.stream_hash != Batches(ONE_HOP, batch_size=4, first=100).stream_hash


def test_letter_frequencies_are_skewed() -> None:
    counts = np.bincount(
        np.concatenate([parse(ONE_HOP, ONE_HOP.row(n, length=2048)[0])[0] for n in range(1)]), minlength=32
    )
    assert counts.max() > 8 * np.median(counts)


def test_refusals() -> None:
    with refuses("2 to 1024 letters and values, got 1"):
        Recall(letters=1)
    with refuses("queries must be between 1 and the number of letters, 4, got 5"):
        Recall(letters=4, queries=5)
    with refuses("at least 32 tokens, a multiple of 2, got 31"):
        Recall(hops=2, length=31)
    with refuses("depth is a fraction of the context"):
        ONE_HOP.row(0, depth=2.0)
