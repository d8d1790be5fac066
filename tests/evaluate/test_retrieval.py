"""Retrieval accuracy: a hand-written model scores 100%, an untrained model scores at chance."""

from functools import partial

import pytest
import torch

from keysift.data.batches import IGNORE
from keysift.data.tasks.recall import Recall
from keysift.data.tokenizers.base import Tokenizer
from keysift.data.tokenizers.bytes import Bytes
from keysift.evaluate.retrieval import accuracy_grid, count_correct_targets, inference_settings
from keysift.evaluate.retrieval_tasks import AbcDigits, Mqar, Passkey, RecallTask, Task, default_lengths, find_task
from keysift.evaluate.scoring import score_targets
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.text_model import TextModel
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.inference import Inference
from keysift.records.evaluation import Cell, interval
from tests.evaluate.planted import retriever
from tests.refusals import refuses

RECALL = Recall()
AS_TRAINED = {"as trained": Inference()}


def test_hand_written_model_scores_100_percent() -> None:
    cells = accuracy_grid(
        retriever(RECALL),
        RecallTask(RECALL),
        lengths=(64, 2048),
        depths=(0.0, 0.5, 1.0),
        settings=AS_TRAINED,
        instances=20,
    )
    assert [cell.accuracy for cell in cells] == [1.0] * 6


def test_rows_differ_by_percent_of_depth() -> None:
    def rows(*depths: float) -> set[tuple[int, ...]]:
        return {tuple(sorted(RecallTask(RECALL).row(n, length=64, depth=d)[0])) for n in range(9) for d in depths}

    assert len(rows(0.1, 0.5, 0.9, 0.49)) == 36
    assert rows(0.501) == rows(0.504) == rows(0.5)


def test_short_window_misses_distant_needles() -> None:
    """Shows that the grid does not count every answer as correct."""
    model = retriever(RECALL)
    with torch.no_grad():
        model.layers[0].tiles.scalars.s_w.fill_(torch.tensor(30.0).log())
    near, far = accuracy_grid(
        model, RecallTask(RECALL), lengths=(64,), depths=(1.0, 0.0), settings=AS_TRAINED, instances=40
    )
    assert near.accuracy == 1.0
    assert far.accuracy < 0.3


def test_answers_of_a_row_are_counted_separately() -> None:
    """With a window of half the row, only needles in the second half are found. Each answer counts separately."""
    model, length = retriever(RECALL), 1024
    rows = [RECALL.row(number, length=length, needles_only=True) for number in range(20)]
    assert count_correct_targets(model, rows, batch_tokens=2048) == (80, 80)
    with torch.no_grad():
        model.layers[0].tiles.scalars.s_w.fill_(torch.tensor(length / 2).log())
    correct, total = count_correct_targets(model, rows)
    assert total == 80
    assert 25 <= correct <= 55


def test_untrained_model_scores_at_chance() -> None:
    torch.manual_seed(0)
    model = Multiscreen(MultiscreenConfig(vocab_size=RECALL.vocab_size, depth=1, tiles=2, width=16)).eval()
    (cell,) = accuracy_grid(model, RecallTask(RECALL), lengths=(64,), depths=(0.5,), settings=AS_TRAINED, instances=100)
    assert cell.correct <= 10  # of 560 tokens, 16 of them values: chance is below 1 in 16


def test_two_hop_recall_beyond_the_training_length() -> None:
    """The task is derived from the tokenizer, and an untrained model scores at chance."""
    trained = Recall(hops=2, letters=8, values=8, length=32, queries=4)
    torch.manual_seed(0)
    shape = MultiscreenConfig(vocab_size=trained.tokenizer.vocab_size, depth=1, tiles=2, width=16, context=32)
    text_model = TextModel(Multiscreen(shape), trained.tokenizer)
    task = find_task("recall", text_model.tokenizer, seed=3, trained_on="recall:hops=2,letters=8,values=8,queries=4")
    assert isinstance(task, RecallTask)
    assert task.task == Recall(hops=2, letters=8, values=8, length=64, queries=4, seed=3)
    lengths = default_lengths("recall", 32)
    assert (lengths[0], lengths[-1]) == (32, 2048)
    tokens, targets = task.row(0, length=2048, depth=0.0)
    (at,) = (targets != IGNORE).nonzero()
    needle = int(tokens[at[0]])
    assert tokens[:2].tolist() == [needle, targets[at[0]]], "the needle comes first, followed by its value"
    assert (tokens[: -2 * 4 : 2] == needle).sum() == 1
    (cell,) = accuracy_grid(text_model.model, task, lengths=(32,), depths=(0.5,), settings=AS_TRAINED, instances=100)
    assert cell.correct <= 25  # chance is 1 in 8


def test_finished_cells_are_not_computed_again() -> None:
    new_cells: list[Cell] = []
    done = Cell(length=64, depth=0.5, setting="as trained", correct=3, total=5)
    cells = accuracy_grid(
        retriever(RECALL),
        RecallTask(RECALL),
        lengths=(64,),
        depths=(0.5, 1.0),
        settings=AS_TRAINED,
        instances=5,
        finished=[done],
        on_cell=new_cells.append,
    )
    assert cells[0] == done
    assert new_cells == [cells[1]]


@pytest.mark.parametrize("task", [AbcDigits(Bytes()), Passkey(Bytes()), Mqar(Bytes())], ids=lambda task: task.name)
def test_only_answers_of_text_tasks_have_targets(task: Task) -> None:
    tokenizer: Tokenizer = Bytes()
    tokens, targets = task.row(3, length=600, depth=0.5)
    assert 500 < len(tokens) <= 600
    (at,) = (targets != IGNORE).nonzero()
    assert at.tolist() == list(range(at[0], len(tokens)))
    answer = tokenizer.decode(targets[at].tolist())
    text = tokenizer.decode(tokens.tolist())
    assert answer.isdigit()
    assert text.count(answer[:-1]) >= 2, "the answer is in the context, and all but its last digit at the end"
    assert task.row(3, length=600, depth=0.5)[0].tolist() == tokens.tolist()
    assert task.row(4, length=600, depth=0.5)[0].tolist() != tokens.tolist()


def test_padding_rows_changes_no_result() -> None:
    model = Transformer(TransformerConfig(vocab_size=257, depth=1, heads=2, width=16)).eval()
    task = Mqar(Bytes())
    settings = inference_settings((1, 2))
    assert list(settings) == ["as trained", "RoPE x2"]
    grid = partial(accuracy_grid, model, task, lengths=(120,), depths=(0.5,), settings=settings, instances=6)
    assert grid(batch_tokens=1) == grid()


def test_scoring_in_chunks_equals_the_forward_pass() -> None:
    model = Multiscreen(MultiscreenConfig.psi(3, vocab_size=50)).eval()
    tokens = torch.randint(0, 50, (2, 90))
    targets = torch.randint(0, 50, (2, 90))
    targets[:, ::3] = IGNORE
    scores = score_targets(model, tokens, targets, chunk=7)
    with torch.no_grad():
        logits = model(tokens)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(2, 90)
    torch.testing.assert_close(scores.loss_BT, expected)
    has_target = targets != IGNORE
    assert torch.equal(scores.predicted_BT[has_target], logits.argmax(-1)[has_target])
    assert (scores.predicted_BT[~has_target] == IGNORE).all()


def test_interval_is_the_wilson_interval() -> None:
    assert interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)
    assert interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert interval(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-3)


def test_refusals() -> None:
    with refuses("at least one instance"):
        accuracy_grid(
            retriever(RECALL), RecallTask(RECALL), lengths=(64,), depths=(0.5,), settings=AS_TRAINED, instances=0
        )
    with refuses("has room for no pair"):
        Mqar(Bytes()).row(0, length=10, depth=0.5)
