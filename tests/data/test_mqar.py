"""MQAR examples: every key is queried once; texts and refused arguments."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from keysift.core.config import from_dict
from keysift.data import find_source
from keysift.data.tasks import mqar
from keysift.data.tasks.mqar import Task, examples
from tests.refusals import refuses


@given(pairs=st.integers(1, 12), extra=st.integers(0, 40), seed=st.integers(0, 99), fill=st.booleans())
def test_every_key_is_queried_once(pairs: int, extra: int, seed: int, fill: bool) -> None:
    task = Task(num_kv_pairs=pairs, input_seq_len=4 * pairs + extra, vocab_size=64, seed=seed, random_non_queries=fill)
    tokens, targets = examples(3, task)
    assert tokens.shape == targets.shape == (3, 4 * pairs + extra)
    assert tokens.dtype == targets.dtype == torch.int64
    for row, row_targets in zip(tokens.tolist(), targets.tolist(), strict=True):
        value_of = dict(zip(row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        queries = [t for t, target in enumerate(row_targets) if target != -100]
        assert len(value_of) == len(set(value_of.values())) == pairs
        assert all(0 < key < 32 <= value < 64 for key, value in value_of.items())
        assert sorted(row[t] for t in queries) == sorted(value_of)
        assert all(value_of[row[t]] == row_targets[t] for t in queries)
        assert min(queries) >= 2 * pairs
        if not fill:
            assert all(row[t] == 0 for t in range(2 * pairs, len(row)) if t not in queries)


def test_a_row_depends_on_seed_and_number_only() -> None:
    tokens, targets = examples(6, Task(seed=3))
    later = examples(2, Task(seed=3), first=4)
    assert torch.equal(tokens[4:], later[0])
    assert torch.equal(targets[4:], later[1])
    assert not torch.equal(tokens, examples(6, Task(seed=4))[0])
    assert torch.equal(examples(2)[0], examples(2, Task())[0])


def test_queries_come_sooner_with_a_smaller_exponent() -> None:
    def mean(power: float) -> float:
        _, targets = examples(200, Task(input_seq_len=256, power_a=power))
        return float(np.nonzero(targets.numpy() != -100)[1].mean())

    assert mean(0.01) < mean(1.0) - 20


def test_mqar_as_text() -> None:
    source = find_source("mqar:min_kv_pairs=2,max_kv_pairs=5,vocab_size=100,documents=40")
    documents = list(source.documents())
    curriculum = mqar.Curriculum(min_kv_pairs=2, max_kv_pairs=5, vocab_size=100, documents=40)
    assert [document.text for document in documents] == [curriculum.document(i).text for i in range(40)]
    sizes = set()
    for document in documents:
        context, answers = document.text.rstrip("\n").split("\n")
        assert sorted(context.split()) == sorted(answers.split())
        sizes.add(len(set(context.split())))
    assert sizes == {2, 3, 4, 5}


def test_every_field_of_the_curriculum_matters() -> None:
    default = mqar.Curriculum()
    default_texts = [default.document(i).text for i in range(30)]
    for change in ({"seed": 1}, {"min_kv_pairs": 5}, {"max_kv_pairs": 3}, {"vocab_size": 99}):
        changed = from_dict(mqar.Curriculum, change)
        assert [changed.document(i).text for i in range(30)] != default_texts, change


def test_refusals() -> None:
    with refuses("at least 4 \\* num_kv_pairs, got 64 and 17"):
        Task(num_kv_pairs=17)
    with refuses("vocab_size must exceed 2 \\* num_kv_pairs \\+ 1, got 16 and 8"):
        Task(vocab_size=16)
    with refuses("power_a must be above 0, got 0"):
        from_dict(Task, {"power_a": 0})
    with refuses("mqar needs at least one document, got 0"):
        mqar.Curriculum(documents=0)
    with refuses("1 <= min_kv_pairs <= max_kv_pairs, got 9 and 8"):
        mqar.Curriculum(min_kv_pairs=9)
    with refuses("mqar needs at least one example, got 0"):
        examples(0)


def test_a_negative_seed_and_sizes_beyond_memory_are_refused() -> None:
    with refuses("the seed of mqar must be at least 0, got -1"):
        find_source("mqar:seed=-1")
    with refuses("vocab_size and input_seq_len must be at most 16,777,216, got 1000000000000"):
        find_source("mqar:vocab_size=1000000000000,max_kv_pairs=100000000000")
