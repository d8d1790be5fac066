"""Recall rows: every answer follows from the row, needles stand once, and a row does not depend on the others."""

import numpy as np
import pytest

from keysift.data.batches import IGNORE
from keysift.data.recall import Batches, Recall
from tests.refusals import refuses

ONE = Recall()
TWO = Recall(hops=2, letters=8, values=8, length=32, queries=4)
each_task = pytest.mark.parametrize("task", [ONE, TWO], ids=["one hop", "two hops"])


def told(task: Recall, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Letters and values of the context, and the letters asked, read by the description alone."""
    if task.hops == 1:
        pairs = tokens[: -task.queries]
        return pairs // task.values, pairs % task.values, tokens[-task.queries :] - task.letters * task.values
    letters, values = tokens[0::2], tokens[1::2] - task.letters
    return letters[: -task.queries], values[: -task.queries], letters[-task.queries :]


@each_task
@pytest.mark.parametrize("number", range(5))
def test_every_answer_stands_in_the_context(task: Recall, number: int) -> None:
    tokens, targets = task.row(number)
    assert len(tokens) == len(targets) == task.length
    assert tokens.min() >= 0
    assert tokens.max() < task.vocab_size
    letters, values, asked = told(task, tokens)
    offset = task.vocab_size - task.values
    answers = targets[targets != IGNORE] - offset
    assert len(answers) == task.queries
    counts = []
    for letter, answer in zip(asked, answers, strict=True):
        seen = values[letters == letter]
        assert set(seen) == {answer}
        counts.append(len(seen))
    assert sum(count == 1 for count in counts) >= task.needles
    assert len(set(asked)) == task.queries


@each_task
@pytest.mark.parametrize("depth", [0.0, 0.5, 1.0])
def test_a_cell_of_the_grid_asks_one_needle_at_its_depth(task: Recall, depth: float) -> None:
    tokens, targets = task.row(7, length=4 * task.length, depth=depth)
    assert len(tokens) == 4 * task.length
    (at,) = np.flatnonzero(targets != IGNORE)
    letters, values, _ = told(task, tokens)
    letter = tokens[at] - (task.letters * task.values if task.hops == 1 else 0)
    (where,) = np.flatnonzero(letters == letter)
    assert values[where] == targets[at] - (task.vocab_size - task.values)
    assert abs(where - depth * (len(letters) - 1)) <= 1


@each_task
def test_needles_alone_are_asked_if_so_wished(task: Recall) -> None:
    length = 8 * task.length
    tokens, targets = task.row(7, length=length, needles_only=True)
    assert tokens.tolist() == task.row(7, length=length)[0].tolist()
    letters, _, _ = told(task, tokens)
    (at,) = np.nonzero(targets != IGNORE)
    asked = tokens[at] - (task.letters * task.values if task.hops == 1 else 0)
    assert [int((letters == letter).sum()) for letter in asked] == [1] * task.needles
    assert len(np.flatnonzero(task.row(7, length=length)[1] != IGNORE)) == task.queries


def test_batches_are_the_rows_in_order() -> None:
    batches = Batches(ONE, batch_size=4)
    whole = batches.batch(3)
    halves = [batches.batch(3, part, 2) for part in range(2)]
    assert whole.inputs.tolist() == [row for half in halves for row in half.inputs.tolist()]
    assert whole.inputs[1].tolist() == ONE.row(13)[0].tolist()
    assert batches.stream_hash != Batches(Recall(seed=1), batch_size=4).stream_hash
    assert batches.stream_hash != Batches(ONE, batch_size=4, first=100).stream_hash


def test_others_are_skewed() -> None:
    counts = np.bincount(np.concatenate([told(ONE, ONE.row(n, length=2048)[0])[0] for n in range(1)]), minlength=32)
    assert counts.max() > 8 * np.median(counts)


def test_refusals() -> None:
    with refuses("2 to 1024 letters and values, got 1"):
        Recall(letters=1)
    with refuses("between 1 and all 4 letters"):
        Recall(letters=4, queries=5)
    with refuses("at least 32 tokens in steps of 2, got 31"):
        Recall(hops=2, length=31)
    with refuses("share of the context"):
        ONE.row(0, depth=2.0)
