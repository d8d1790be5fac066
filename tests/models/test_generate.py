"""Generation: what is chosen is what the full forward says, alone or in a batch, and every setting does its work."""

import dataclasses

import pytest
import torch

from keysift.models.generate import generate
from keysift.models.language import LanguageModel
from keysift.models.sample import Sampling, filtered, penalised
from keysift.models.transformer import TransformerConfig
from keysift.nn.inference import Inference
from tests.models.checks import TINY, opened, shaken, tokens_for
from tests.refusals import refuses

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 1, 2], [3]]


@pytest.fixture(params=["multiscreen", "transformer"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    if request.param == "multiscreen":
        return opened(TINY, windows=(2.5, 6.0, 9.3), seed=3)
    return shaken(TransformerConfig(vocab_size=9, depth=2, heads=2, width=8))


@torch.no_grad()
def by_hand(model: LanguageModel, prompt: list[int], steps: int, inference: Inference) -> list[int]:
    """Greedy decoding by full forwards: what evaluation sees."""
    text = list(prompt)
    for _ in range(steps):
        text.append(int(model(torch.tensor([text]), inference=inference)[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("chunk", [2, 512])
def test_greedy_in_a_batch_is_greedy_by_full_forwards(model: LanguageModel, chunk: int) -> None:
    result = generate(model, PROMPTS, max_tokens=12, chunk=chunk)
    assert [row.tokens for row in result.rows] == [by_hand(model, prompt, 12, Inference()) for prompt in PROMPTS]
    assert result.tokens_per_second == pytest.approx(36 / result.seconds)


def test_window_expansion_is_the_same_in_generation_and_evaluation() -> None:
    model = opened(TINY, windows=(2.5, 6.0, 9.3), seed=3)
    texts = []
    for inference in (Inference(), Inference(expand_windows_beyond=5)):
        result = generate(model, PROMPTS, max_tokens=25, inference=inference)
        expected = [by_hand(model, prompt, 25, inference) for prompt in PROMPTS]
        assert [row.tokens for row in result.rows] == expected
        texts.append(expected)
    assert texts[0] != texts[1], "window expansion changed no token here"


def test_a_seed_repeats_and_a_row_does_not_depend_on_its_neighbours(model: LanguageModel) -> None:
    drawn = Sampling(temperature=1.0, seed=7)
    first, again = (generate(model, PROMPTS, max_tokens=10, sampling=drawn) for _ in range(2))
    other = generate(model, PROMPTS, max_tokens=10, sampling=Sampling(temperature=1.0, seed=8))
    alone = generate(model, PROMPTS[:1], max_tokens=10, sampling=drawn)
    assert [row.tokens for row in first.rows] == [row.tokens for row in again.rows]
    assert [row.tokens for row in first.rows] != [row.tokens for row in other.rows]
    assert alone.rows[0].tokens == first.rows[0].tokens


def test_a_row_ends_at_the_end_token_and_the_others_go_on(model: LanguageModel) -> None:
    free = generate(model, PROMPTS, max_tokens=12)
    end = free.rows[0].tokens[4]
    result = generate(model, PROMPTS, max_tokens=12, end_id=end)
    for row, full in zip(result.rows, free.rows, strict=True):
        cut = full.tokens.index(end) if end in full.tokens else 12
        assert row.tokens == full.tokens[:cut]
        assert row.stopped == ("end" if end in full.tokens else "length")


def letters(tokens: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_stop_texts_and_the_callback(model: LanguageModel) -> None:
    heard: dict[int, list[int]] = {0: [], 1: [], 2: []}
    free = generate(model, PROMPTS, max_tokens=12, decode=letters)
    texts = [row.text for row in free.rows]
    assert texts == [letters(row.tokens) for row in free.rows]
    stop = texts[1][3:6]
    result = generate(
        model,
        PROMPTS,
        max_tokens=12,
        decode=letters,
        stop=[stop, "not there"],
        on_token=lambda row, token: heard[row].append(token),
    )
    assert result.rows[1].stopped == "stop"
    for number, row in enumerate(result.rows):
        assert row.text == texts[number].split(stop)[0]
        assert heard[number] == row.tokens
    assert stop in letters(result.rows[1].tokens)


def test_an_exception_of_the_callback_ends_the_generation(model: LanguageModel) -> None:
    def interrupt(row: int, token: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(model, PROMPTS, max_tokens=12, on_token=interrupt)


def test_every_sampling_field_changes_the_text(model: LanguageModel) -> None:
    base = Sampling(temperature=1.5)
    prompts = [tokens_for(model, 1, 5, seed)[0].tolist() for seed in range(6)]
    plain = generate(model, prompts, max_tokens=15, sampling=base)
    changes = {
        "repetition_penalty": 3.0,
        "temperature": 0.3,
        "top_k": 2,
        "top_p": 0.4,
        "min_p": 0.5,
        "seed": 1,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(Sampling)}
    for name, value in changes.items():
        changed = generate(model, prompts, max_tokens=15, sampling=dataclasses.replace(base, **{name: value}))
        assert [row.tokens for row in changed.rows] != [row.tokens for row in plain.rows], name


LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(temperature=1.0, top_k=2), [1, 3]),
        (Sampling(temperature=1.0, top_k=9), [0, 1, 2, 3]),
        (Sampling(temperature=1.0, top_p=0.39), [1]),
        (Sampling(temperature=1.0, top_p=0.69), [1, 3]),
        (Sampling(temperature=1.0, top_p=0.71), [1, 2, 3]),
        (Sampling(temperature=1.0, min_p=0.51), [1, 3]),
        (Sampling(temperature=1.0, min_p=0.49), [1, 2, 3]),
        (Sampling(temperature=1.0, min_p=1.0), [1]),
        (Sampling(temperature=1.0, top_k=3, top_p=0.9, min_p=0.6), [1, 3]),
    ],
    ids=str,
)
def test_filters_leave_what_they_say(sampling: Sampling, left: list[int]) -> None:
    assert filtered(LOGITS, sampling)[0].isfinite().nonzero()[:, 0].tolist() == left


def test_repetition_penalty() -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0, -4.0]])
    occurs = torch.tensor([[True, True, False, False]])
    assert penalised(logits, occurs, 2.0).tolist() == [[1.0, -2.0, 3.0, -4.0]]


def test_draws_follow_the_distribution(model: LanguageModel) -> None:
    prompts = [[1, 2, 3]] * 2000
    drawn = generate(model, prompts, max_tokens=1, sampling=Sampling(temperature=1.0))
    counts = torch.bincount(torch.tensor([row.tokens[0] for row in drawn.rows]), minlength=9) / 2000
    with torch.no_grad():
        chances = model(torch.tensor([[1, 2, 3]]))[0, -1].softmax(-1)
    assert (counts - chances).abs().max() < 0.04


def test_refusals(model: LanguageModel) -> None:
    with refuses("at least one prompt"):
        generate(model, [], max_tokens=3)
    with refuses("one token in each"):
        generate(model, [[1], []], max_tokens=3)
    with refuses("max_tokens and chunk must be at least 1, got 0"):
        generate(model, [[1]], max_tokens=0)
    with refuses("pass decode=tokenizer.decode"):
        generate(model, [[1]], max_tokens=3, stop=["a"])
    for wrong, text in (
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"temperature": 1.0, "top_k": 0}, "top_k must be at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"temperature": 1.0, "min_p": 1.5}, r"min_p must lie in \[0, 1\]"),
        ({"top_k": 5}, "temperature 0 draws nothing"),
    ):
        with refuses(text):
            Sampling(**wrong)
