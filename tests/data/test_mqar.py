import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from keysift.core.config import from_dict
from keysift.data import find_source, mqar
from keysift.data.mqar import Task, examples
from tests.refusals import refuses


@given(pairs=st.integers(1, 12), extra=st.integers(0, 40), seed=st.integers(0, 99), fill=st.booleans())
def test_every_key_is_asked_once_and_answered(pairs: int, extra: int, seed: int, fill: bool) -> None:
    task = Task(num_kv_pairs=pairs, input_seq_len=4 * pairs + extra, vocab_size=64, seed=seed, random_non_queries=fill)
    tokens, targets = examples(3, task)
    assert tokens.shape == targets.shape == (3, 4 * pairs + extra)
    assert tokens.dtype == targets.dtype == torch.int64
    for row, wanted in zip(tokens.tolist(), targets.tolist(), strict=True):
        told = dict(zip(row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        asked = [t for t, target in enumerate(wanted) if target != -100]
        assert len(told) == len(set(told.values())) == pairs
        assert all(0 < key < 32 <= value < 64 for key, value in told.items())
        assert sorted(row[t] for t in asked) == sorted(told)
        assert all(told[row[t]] == wanted[t] for t in asked)
        assert min(asked) >= 2 * pairs
        if not fill:
            assert all(row[t] == 0 for t in range(2 * pairs, len(row)) if t not in asked)


def test_a_row_depends_on_seed_and_number_alone() -> None:
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


def test_batches_resume_by_step_and_divide_by_part() -> None:
    batches = mqar.Batches(Task(), batch_size=4)
    whole = batches.batch(3)
    assert whole.rows == (12, 13, 14, 15)
    assert whole.positions is None
    halves = [batches.batch(3, part, 2) for part in range(2)]
    assert torch.equal(torch.cat([half.inputs for half in halves]), whole.inputs)
    assert torch.equal(torch.cat([half.targets for half in halves]), whole.targets)
    assert torch.equal(whole.inputs, examples(4, Task(), first=12)[0])
    assert (batches.context, batches.vocab_size) == (64, 8192)
    assert batches.stream_hash == mqar.Batches(Task(), batch_size=8).stream_hash
    assert batches.stream_hash != mqar.Batches(Task(seed=1), batch_size=4).stream_hash


def test_as_text() -> None:
    source = find_source("mqar:min_kv_pairs=2,max_kv_pairs=5,vocab_size=100,documents=40")
    documents = list(source.documents())
    recipe = mqar.Curriculum(min_kv_pairs=2, max_kv_pairs=5, vocab_size=100, documents=40)
    assert [document.text for document in documents] == [recipe.document(i).text for i in range(40)]
    sizes = set()
    for document in documents:
        told, answers = document.text.rstrip("\n").split("\n")
        assert sorted(told.split()) == sorted(answers.split())
        sizes.add(len(set(told.split())))
    assert sizes == {2, 3, 4, 5}


def test_every_field_of_the_curriculum_matters() -> None:
    usual = mqar.Curriculum()
    told = [usual.document(i).text for i in range(30)]
    for change in ({"seed": 1}, {"min_kv_pairs": 5}, {"max_kv_pairs": 3}, {"vocab_size": 99}):
        other = from_dict(mqar.Curriculum, change)
        assert [other.document(i).text for i in range(30)] != told, change


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
