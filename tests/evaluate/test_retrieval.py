"""The retrieval harness both ways: a model that retrieves scores 100%, one that knows nothing scores at chance."""

import pytest
import torch

from keysift.data.batches import IGNORE
from keysift.data.recall import Recall
from keysift.data.tokenizer import Bytes, Tokenizer
from keysift.evaluate.measured import Cell, interval
from keysift.evaluate.reading import read
from keysift.evaluate.retrieval import Task, answers, grid, settings_of
from keysift.evaluate.tasks import AbcDigits, Mqar, Passkey, RecallTask, find_task, lengths_of
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.inference import Inference
from keysift.runs.text_model import TextModel
from tests.evaluate.planted import retriever
from tests.refusals import refuses

RECALL = Recall()
AS_TRAINED = {"as trained": Inference()}


def test_a_planted_retriever_finds_everything() -> None:
    cells = grid(
        retriever(RECALL),
        RecallTask(RECALL),
        lengths=(64, 2048),
        depths=(0.0, 0.5, 1.0),
        settings=AS_TRAINED,
        instances=20,
    )
    assert [cell.accuracy for cell in cells] == [1.0] * 6


def test_every_percent_of_depth_has_rows_of_its_own() -> None:
    def rows(*depths: float) -> set[tuple[int, ...]]:
        return {tuple(sorted(RecallTask(RECALL).row(n, length=64, depth=d)[0])) for n in range(9) for d in depths}

    assert len(rows(0.1, 0.5, 0.9, 0.49)) == 36
    assert rows(0.501) == rows(0.504) == rows(0.5)


def test_a_retriever_with_a_short_window_loses_what_is_far() -> None:
    """A grid of 100% everywhere could also be a harness that counts wrong."""
    model = retriever(RECALL)
    with torch.no_grad():
        model.layers[0].tiles.scalars.s_w.fill_(torch.tensor(30.0).log())
    near, far = grid(model, RecallTask(RECALL), lengths=(64,), depths=(1.0, 0.0), settings=AS_TRAINED, instances=40)
    assert near.accuracy == 1.0
    assert far.accuracy < 0.3


def test_answers_of_a_row_are_counted_one_by_one() -> None:
    """A window of half the row: needles in the near half are found, and each counts for itself."""
    model, length = retriever(RECALL), 1024
    rows = [RECALL.row(number, length=length, needles_only=True) for number in range(20)]
    assert answers(model, rows, batch_tokens=2048) == (80, 80)
    with torch.no_grad():
        model.layers[0].tiles.scalars.s_w.fill_(torch.tensor(length / 2).log())
    right, asked = answers(model, rows)
    assert asked == 80
    assert 25 <= right <= 55


def test_an_untrained_model_guesses() -> None:
    torch.manual_seed(0)
    model = Multiscreen(MultiscreenConfig(vocab_size=RECALL.vocab_size, depth=1, tiles=2, width=16)).eval()
    (cell,) = grid(model, RecallTask(RECALL), lengths=(64,), depths=(0.5,), settings=AS_TRAINED, instances=100)
    assert cell.right <= 10  # of 560 tokens, 16 of them values: chance is below 1 in 16


def test_recall_of_two_hops_is_asked_beyond_the_training_length() -> None:
    """The task follows from the tokenizer, and a model that knows nothing guesses."""
    trained = Recall(hops=2, letters=8, values=8, length=32, queries=4)
    torch.manual_seed(0)
    shape = MultiscreenConfig(vocab_size=trained.tokenizer.vocab_size, depth=1, tiles=2, width=16, context=32)
    found = TextModel(Multiscreen(shape), trained.tokenizer)
    task = find_task("recall", found, seed=3, trained_on="recall:hops=2,letters=8,values=8,queries=4")
    assert isinstance(task, RecallTask)
    assert task.task == Recall(hops=2, letters=8, values=8, length=64, queries=4, seed=3)
    lengths = lengths_of("recall", 32)
    assert (lengths[0], lengths[-1]) == (32, 2048)
    tokens, targets = task.row(0, length=2048, depth=0.0)
    (at,) = (targets != IGNORE).nonzero()
    needle = int(tokens[at[0]])
    assert tokens[:2].tolist() == [needle, targets[at[0]]], "the needle stands first, with its value behind it"
    assert (tokens[: -2 * 4 : 2] == needle).sum() == 1
    (cell,) = grid(found.model, task, lengths=(32,), depths=(0.5,), settings=AS_TRAINED, instances=100)
    assert cell.right <= 25  # chance is 1 in 8


def test_done_cells_are_not_read_again() -> None:
    told: list[Cell] = []
    done = Cell(length=64, depth=0.5, setting="as trained", right=3, asked=5)
    cells = grid(
        retriever(RECALL),
        RecallTask(RECALL),
        lengths=(64,),
        depths=(0.5, 1.0),
        settings=AS_TRAINED,
        instances=5,
        done=[done],
        on_cell=told.append,
    )
    assert cells[0] == done
    assert told == [cells[1]]


@pytest.mark.parametrize("task", [AbcDigits(Bytes()), Passkey(Bytes()), Mqar(Bytes())], ids=lambda task: task.name)
def test_rows_of_text_tasks_ask_for_the_answer_only(task: Task) -> None:
    tokenizer: Tokenizer = Bytes()
    tokens, targets = task.row(3, length=600, depth=0.5)
    assert 500 < len(tokens) <= 600
    (at,) = (targets != IGNORE).nonzero()
    assert at.tolist() == list(range(at[0], len(tokens)))
    answer = tokenizer.decode(targets[at].tolist())
    text = tokenizer.decode(tokens.tolist())
    assert answer.isdigit()
    assert text.count(answer[:-1]) >= 2, "the answer stands in the context, and its first digits at the end"
    assert task.row(3, length=600, depth=0.5)[0].tolist() == tokens.tolist()
    assert task.row(4, length=600, depth=0.5)[0].tolist() != tokens.tolist()


def test_rows_of_different_lengths_are_padded_and_change_nothing() -> None:
    model = Transformer(TransformerConfig(vocab_size=257, depth=1, heads=2, width=16)).eval()
    task = Mqar(Bytes())
    settings = settings_of((1, 2))
    assert list(settings) == ["as trained", "RoPE x2"]
    one_by_one = grid(model, task, lengths=(120,), depths=(0.5,), settings=settings, instances=6, batch_tokens=1)
    together = grid(model, task, lengths=(120,), depths=(0.5,), settings=settings, instances=6)
    assert one_by_one == together


def test_reading_in_chunks_equals_the_forward() -> None:
    model = Multiscreen(MultiscreenConfig.psi(3, vocab_size=50)).eval()
    tokens = torch.randint(0, 50, (2, 90))
    targets = torch.randint(0, 50, (2, 90))
    targets[:, ::3] = IGNORE
    found = read(model, tokens, targets, chunk=7)
    with torch.no_grad():
        logits = model(tokens)
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(2, 90)
    torch.testing.assert_close(found.loss_BT, wanted)
    asked = targets != IGNORE
    assert torch.equal(found.predicted_BT[asked], logits.argmax(-1)[asked])
    assert (found.predicted_BT[~asked] == IGNORE).all()


def test_the_interval_is_wilsons() -> None:
    assert interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)
    assert interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-3)
    assert interval(50, 100) == pytest.approx((0.4038, 0.5962), abs=1e-3)


def test_refusals() -> None:
    with refuses("at least one instance"):
        grid(retriever(RECALL), RecallTask(RECALL), lengths=(64,), depths=(0.5,), settings=AS_TRAINED, instances=0)
    with refuses("holds no pair"):
        Mqar(Bytes()).row(0, length=10, depth=0.5)
