"""Generation: what is chosen is what the full forward says, alone or in a batch, and every setting does its work."""

import dataclasses
import math

import pytest
import torch

from keysift.core.errors import KeysiftError
from keysift.models.generate import Generation, Request, generate, requests_of
from keysift.models.language import LanguageModel
from keysift.models.sample import Sampler, penalised
from keysift.models.sampling import Sampling
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
    result = generate(model, PROMPTS, max_new_tokens=12, chunk=chunk)
    assert [row.tokens for row in result.rows] == [by_hand(model, prompt, 12, Inference()) for prompt in PROMPTS]
    assert result.tokens_per_second == pytest.approx(36 / result.seconds)


def test_window_expansion_is_the_same_in_generation_and_evaluation() -> None:
    model = opened(TINY, windows=(2.5, 6.0, 9.3), seed=3)
    texts = []
    for inference in (Inference(), Inference(expand_windows=5)):
        result = generate(model, PROMPTS, max_new_tokens=25, inference=inference)
        expected = [by_hand(model, prompt, 25, inference) for prompt in PROMPTS]
        assert [row.tokens for row in result.rows] == expected
        texts.append(expected)
    assert texts[0] != texts[1], "window expansion changed no token here"


def test_a_seed_repeats_and_a_row_does_not_depend_on_its_neighbours(model: LanguageModel) -> None:
    drawn = Sampling(temperature=1.0, seed=7)
    first, again = (generate(model, PROMPTS, max_new_tokens=10, sampling=drawn) for _ in range(2))
    other = generate(model, PROMPTS, max_new_tokens=10, sampling=Sampling(temperature=1.0, seed=8))
    alone = generate(model, PROMPTS[:1], max_new_tokens=10, sampling=drawn)
    assert [row.tokens for row in first.rows] == [row.tokens for row in again.rows]
    assert [row.tokens for row in first.rows] != [row.tokens for row in other.rows]
    assert alone.rows[0].tokens == first.rows[0].tokens


def test_a_row_ends_at_the_end_token_and_the_others_go_on(model: LanguageModel) -> None:
    free = generate(model, PROMPTS, max_new_tokens=12)
    end = free.rows[0].tokens[4]
    result = generate(model, PROMPTS, max_new_tokens=12, end_id=end)
    for row, full in zip(result.rows, free.rows, strict=True):
        cut = full.tokens.index(end) if end in full.tokens else 12
        assert row.tokens == full.tokens[:cut]
        assert row.stopped == ("end" if end in full.tokens else "length")


class Letters:
    """A decoder: token 0 is a, 1 is b, ..."""

    def add(self, token: int) -> str:
        return chr(ord("a") + token)

    def end(self) -> str:
        return ""


def letters(tokens: list[int]) -> str:
    return "".join(map(Letters().add, tokens))


def test_stop_texts(model: LanguageModel) -> None:
    free = generate(model, PROMPTS, max_new_tokens=12, decoder=Letters)
    texts = [row.text for row in free.rows]
    assert texts == [letters(row.tokens) for row in free.rows]
    stop = texts[1][3:6]
    result = generate(model, PROMPTS, max_new_tokens=12, decoder=Letters, stop=[stop, "not there"])
    assert result.rows[1].stopped == "stop"
    for number, row in enumerate(result.rows):
        assert row.text == texts[number].split(stop)[0]
    assert stop in letters(result.rows[1].tokens)
    one = generate(model, PROMPTS, max_new_tokens=12, decoder=Letters, stop=stop)
    assert [row.text for row in one.rows] == [row.text for row in result.rows]


def test_pieces_come_as_they_are_made_and_make_up_the_rows(model: LanguageModel) -> None:
    whole = generate(model, PROMPTS, max_new_tokens=6, decoder=Letters)
    going = Generation(model, requests_of(PROMPTS, max_new_tokens=6), decoder=Letters)
    first = next(going)
    assert (first.row, first.token, first.text) == (0, whole.rows[0].tokens[0], whole.rows[0].text[0])
    assert [len(row.tokens) for row in going.rows] == [1, 0, 0], "the others were not waited for"
    pieces = [first, *going]
    for number, row in enumerate(whole.rows):
        own = [piece for piece in pieces if piece.row == number]
        assert [piece.token for piece in own] == row.tokens
        assert "".join(piece.text for piece in own) == row.text
        assert [piece.stopped for piece in own] == [None] * 5 + ["length"]
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled(), "a generator that is waiting must not keep gradients off"


def test_each_row_has_its_own_settings_and_its_answer_does_not_depend_on_its_neighbours(model: LanguageModel) -> None:
    greedy = generate(model, PROMPTS, max_new_tokens=12, decoder=Letters)
    requests = [
        Request(prompt=PROMPTS[0], max_new_tokens=11, sampling=Sampling(temperature=1.0, seed=5)),
        Request(prompt=PROMPTS[1], max_new_tokens=3),
        Request(prompt=PROMPTS[1], max_new_tokens=12, stop=(greedy.rows[1].text[2:5],)),
        Request(prompt=PROMPTS[2], max_new_tokens=9, sampling=Sampling(temperature=2.0, top_k=2, seed=2**64 - 1)),
        Request(prompt=PROMPTS[0], max_new_tokens=11, sampling=Sampling(temperature=1.0, seed=5, top_p=0.5)),
        Request(prompt=PROMPTS[0], max_new_tokens=11, sampling=Sampling(repetition_penalty=2.0)),
    ]
    together = generate(model, requests, decoder=Letters).rows
    alone = [generate(model, [request], decoder=Letters).rows[0] for request in requests]
    turned = generate(model, requests[::-1], decoder=Letters).rows[::-1]
    for rows in (together, turned):
        assert [(row.tokens, row.text, row.stopped) for row in rows] == [
            (row.tokens, row.text, row.stopped) for row in alone
        ]
    assert [len(row.tokens) for row in together] == [11, 3, len(together[2].tokens), 9, 11, 11]
    assert together[1].tokens == greedy.rows[1].tokens[:3]
    assert together[2].stopped == "stop"
    assert together[0].tokens != together[4].tokens
    assert together[5].tokens != greedy.rows[0].tokens[:11]


def test_an_id_beyond_the_tokenizer_is_never_chosen(model: LanguageModel) -> None:
    free = generate(model, PROMPTS, max_new_tokens=12)
    most = max(token for row in free.rows for token in row.tokens)
    held = Generation(model, requests_of(PROMPTS, max_new_tokens=12), vocab_size=most).run()
    assert all(token < most for row in held.rows for token in row.tokens)


@pytest.mark.parametrize("extreme", [{"temperature": 1e-40}, {"temperature": 1.0, "top_p": 1e-300}], ids=str)
def test_the_coldest_draw_is_the_most_likely_token(model: LanguageModel, extreme: dict[str, float]) -> None:
    greedy = generate(model, PROMPTS, max_new_tokens=8)
    cold = generate(model, PROMPTS, max_new_tokens=8, sampling=Sampling(**extreme))
    assert [row.tokens for row in cold.rows] == [row.tokens for row in greedy.rows]


def test_every_sampling_field_changes_the_text(model: LanguageModel) -> None:
    base = Sampling(temperature=1.5)
    prompts = [tokens_for(model, 1, 5, seed)[0].tolist() for seed in range(6)]
    plain = generate(model, prompts, max_new_tokens=15, sampling=base)
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
        changed = generate(model, prompts, max_new_tokens=15, sampling=dataclasses.replace(base, **{name: value}))
        assert [row.tokens for row in changed.rows] != [row.tokens for row in plain.rows], name


LOGITS = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64).log()


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
    assert Sampler([sampling]).filtered(LOGITS)[0].isfinite().nonzero()[:, 0].tolist() == left


def test_repetition_penalty() -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0, -4.0]])
    occurs = torch.tensor([[True, True, False, False]])
    assert penalised(logits, occurs, torch.tensor([[2.0]])).tolist() == [[1.0, -2.0, 3.0, -4.0]]


def test_draws_follow_the_distribution(model: LanguageModel) -> None:
    prompts = [[1, 2, 3]] * 2000
    drawn = generate(model, prompts, max_new_tokens=1, sampling=Sampling(temperature=1.0))
    counts = torch.bincount(torch.tensor([row.tokens[0] for row in drawn.rows]), minlength=9) / 2000
    with torch.no_grad():
        chances = model(torch.tensor([[1, 2, 3]]))[0, -1].softmax(-1)
    assert (counts - chances).abs().max() < 0.04


def test_a_past_that_no_memory_holds_is_refused_before_it_begins() -> None:
    """A Multiscreen forgets what its windows have passed, so its text may have any length."""
    softmax = shaken(TransformerConfig(vocab_size=9, depth=2, heads=2, width=8))
    with refuses("the past of 2 texts of 1,000,000,000,003 tokens needs about .* lower max_new_tokens"):
        generate(softmax, [[1, 2, 3], [1]], max_new_tokens=10**12)
    for name in ("softmax", "differential_v1"):
        plain = shaken(TransformerConfig(vocab_size=9, depth=2, heads=4, width=8, mechanism=name))
        held = Generation(plain, requests_of([[1] * 60, [2]], max_new_tokens=4)).run()._cache.nbytes  # room for 64
        with pytest.raises(KeysiftError) as caught:
            generate(plain, [[1]] * 2, max_new_tokens=10**12 - 1)
        estimate = float(str(caught.value).split("about ")[1].split(" GB")[0]) * 1e9
        assert estimate == pytest.approx(held / 64 * 1e12, rel=0.02)
    forgetful = Generation(opened(TINY, windows=(2.5, 6.0, 9.3)), requests_of([[1, 2]], max_new_tokens=10**12))
    assert next(forgetful).token is not None


def test_refusals(model: LanguageModel) -> None:
    with refuses("at least one prompt"):
        generate(model, [], max_new_tokens=3)
    with refuses("one token in each"):
        generate(model, [[1], []], max_new_tokens=3)
    with refuses("max_new_tokens must be at least 1, got 0"):
        generate(model, [[1]], max_new_tokens=0)
    with refuses("chunk must be at least 1, got 0"):
        generate(model, [[1]], chunk=0)
    with refuses("pass decoder=tokenizer.decoder"):
        generate(model, [[1]], max_new_tokens=3, stop=["a"])
    with refuses("at least one character each"):
        generate(model, [[1]], stop=["a", ""], decoder=Letters)
    with refuses("stop is a list of texts"):
        Request(prompt=[1], stop="END")
    with refuses("a prompt is a list of token ids here"):
        generate(model, ["abc"])
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with refuses("logits are not finite"):
        generate(model, [[1]])
    for wrong, text in (
        ({"repetition_penalty": 0.0}, "repetition_penalty must be a number above 0"),
        ({"temperature": -1.0}, "temperature must be at least 0"),
        ({"temperature": math.inf}, "temperature must be at least 0"),
        ({"seed": -1}, "seed must lie in 0"),
        ({"seed": 2**64}, "seed must lie in 0"),
        ({"temperature": 1.0, "top_k": 0}, "top_k must be at least 1"),
        ({"temperature": 1.0, "top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"temperature": 1.0, "min_p": 1.5}, r"min_p must lie in \[0, 1\]"),
        ({"top_k": 5}, "temperature 0 draws nothing"),
    ):
        with refuses(text):
            Sampling(**wrong)
