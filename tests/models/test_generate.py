"""Generation agrees with forward passes, alone and in a batch, and every setting has an effect."""

import dataclasses
import math

import pytest
import torch

from keysift.core.errors import KeysiftError
from keysift.models.generate import Generation, Request, generate, make_requests
from keysift.models.language_model import LanguageModel
from keysift.models.sampler import Sampler, penalised
from keysift.models.sampling_settings import Sampling
from keysift.models.transformer import TransformerConfig
from keysift.nn.inference import Inference
from tests.models.checks import TINY, perturbed_multiscreen, perturbed_transformer, tokens_for
from tests.refusals import refuses

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 1, 2], [3]]


@pytest.fixture(params=["multiscreen", "transformer"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    if request.param == "multiscreen":
        return perturbed_multiscreen(TINY, windows=(2.5, 6.0, 9.3), seed=3)
    return perturbed_transformer(TransformerConfig(vocab_size=9, depth=2, heads=2, width=8))


@torch.no_grad()
def greedy_by_forward_passes(model: LanguageModel, prompt: list[int], steps: int, inference: Inference) -> list[int]:
    """Greedy decoding with a full forward pass per token, as in evaluation."""
    tokens = list(prompt)
    for _ in range(steps):
        tokens.append(int(model(torch.tensor([tokens]), inference=inference)[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("chunk", [2, 512])
def test_greedy_in_a_batch_equals_full_forward_passes(model: LanguageModel, chunk: int) -> None:
    result = generate(model, PROMPTS, max_new_tokens=12, chunk=chunk)
    assert [row.tokens for row in result.rows] == [
        greedy_by_forward_passes(model, prompt, 12, Inference()) for prompt in PROMPTS
    ]
    assert result.tokens_per_second == pytest.approx(36 / result.seconds)


def test_window_expansion_agrees_in_generation_and_forward() -> None:
    model = perturbed_multiscreen(TINY, windows=(2.5, 6.0, 9.3), seed=3)
    texts = []
    for inference in (Inference(), Inference(expand_windows=5)):
        result = generate(model, PROMPTS, max_new_tokens=25, inference=inference)
        expected = [greedy_by_forward_passes(model, prompt, 25, inference) for prompt in PROMPTS]
        assert [row.tokens for row in result.rows] == expected
        texts.append(expected)
    assert texts[0] != texts[1], "window expansion changed no token here"


def test_seed_determines_each_row_independently(model: LanguageModel) -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    first, again = (generate(model, PROMPTS, max_new_tokens=10, sampling=sampling) for _ in range(2))
    other = generate(model, PROMPTS, max_new_tokens=10, sampling=Sampling(temperature=1.0, seed=8))
    alone = generate(model, PROMPTS[:1], max_new_tokens=10, sampling=sampling)
    assert [row.tokens for row in first.rows] == [row.tokens for row in again.rows]
    assert [row.tokens for row in first.rows] != [row.tokens for row in other.rows]
    assert alone.rows[0].tokens == first.rows[0].tokens


def test_end_token_ends_its_row_only(model: LanguageModel) -> None:
    free = generate(model, PROMPTS, max_new_tokens=12)
    end = free.rows[0].tokens[4]
    result = generate(model, PROMPTS, max_new_tokens=12, end_id=end)
    for row, full in zip(result.rows, free.rows, strict=True):
        cut = full.tokens.index(end) if end in full.tokens else 12
        assert row.tokens == full.tokens[:cut]
        assert row.stopped == ("end" if end in full.tokens else "length")


class Letters:
    """Decoder for which token 0 is a, token 1 is b, and so on."""

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
    single = generate(model, PROMPTS, max_new_tokens=12, decoder=Letters, stop=stop)
    assert [row.text for row in single.rows] == [row.text for row in result.rows]


def test_tokens_are_yielded_as_they_are_generated(model: LanguageModel) -> None:
    whole = generate(model, PROMPTS, max_new_tokens=6, decoder=Letters)
    generation = Generation(model, make_requests(PROMPTS, max_new_tokens=6), decoder=Letters)
    first = next(generation)
    assert (first.row, first.token, first.text) == (0, whole.rows[0].tokens[0], whole.rows[0].text[0])
    assert [len(row.tokens) for row in generation.rows] == [1, 0, 0], "the first token does not wait for the other rows"
    pieces = [first, *generation]
    for number, row in enumerate(whole.rows):
        row_pieces = [piece for piece in pieces if piece.row == number]
        assert [piece.token for piece in row_pieces] == row.tokens
        assert "".join(piece.text for piece in row_pieces) == row.text
        assert [piece.stopped for piece in row_pieces] == [None] * 5 + ["length"]
    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled(), "a suspended generator must not disable gradients"


def test_rows_with_different_settings_equal_single_requests(model: LanguageModel) -> None:
    greedy = generate(model, PROMPTS, max_new_tokens=12, decoder=Letters)
    requests = [
        Request(prompt=PROMPTS[0], max_new_tokens=11, sampling=Sampling(temperature=1.0, seed=5)),
        Request(prompt=PROMPTS[1], max_new_tokens=3),
        Request(prompt=PROMPTS[1], max_new_tokens=12, stop=(greedy.rows[1].text[2:5],)),
        Request(prompt=PROMPTS[2], max_new_tokens=9, sampling=Sampling(temperature=2.0, top_k=2, seed=2**64 - 1)),
        Request(prompt=PROMPTS[0], max_new_tokens=11, sampling=Sampling(temperature=1.0, seed=5, top_p=0.5)),
        Request(prompt=PROMPTS[0], max_new_tokens=11, sampling=Sampling(repetition_penalty=2.0)),
    ]
    batched = generate(model, requests, decoder=Letters).rows
    alone = [generate(model, [request], decoder=Letters).rows[0] for request in requests]
    reversed_batch = generate(model, requests[::-1], decoder=Letters).rows[::-1]
    for rows in (batched, reversed_batch):
        assert [(row.tokens, row.text, row.stopped) for row in rows] == [
            (row.tokens, row.text, row.stopped) for row in alone
        ]
    assert [len(row.tokens) for row in batched] == [11, 3, len(batched[2].tokens), 9, 11, 11]
    assert batched[1].tokens == greedy.rows[1].tokens[:3]
    assert batched[2].stopped == "stop"
    assert batched[0].tokens != batched[4].tokens
    assert batched[5].tokens != greedy.rows[0].tokens[:11]


def test_ids_beyond_the_tokenizer_are_never_sampled(model: LanguageModel) -> None:
    free = generate(model, PROMPTS, max_new_tokens=12)
    largest = max(token for row in free.rows for token in row.tokens)
    limited = Generation(model, make_requests(PROMPTS, max_new_tokens=12), vocab_size=largest).run()
    assert all(token < largest for row in limited.rows for token in row.tokens)


@pytest.mark.parametrize("extreme", [{"temperature": 1e-40}, {"temperature": 1.0, "top_p": 1e-300}], ids=str)
def test_lowest_temperature_is_greedy(model: LanguageModel, extreme: dict[str, float]) -> None:
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
    ("sampling", "remaining"),
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
def test_filters_keep_the_expected_tokens(sampling: Sampling, remaining: list[int]) -> None:
    assert Sampler([sampling]).filtered(LOGITS)[0].isfinite().nonzero()[:, 0].tolist() == remaining


def test_repetition_penalty() -> None:
    logits = torch.tensor([[2.0, -1.0, 3.0, -4.0]])
    occurs = torch.tensor([[True, True, False, False]])
    assert penalised(logits, occurs, torch.tensor([[2.0]])).tolist() == [[1.0, -2.0, 3.0, -4.0]]


def test_draws_follow_the_distribution(model: LanguageModel) -> None:
    prompts = [[1, 2, 3]] * 2000
    result = generate(model, prompts, max_new_tokens=1, sampling=Sampling(temperature=1.0))
    counts = torch.bincount(torch.tensor([row.tokens[0] for row in result.rows]), minlength=9) / 2000
    with torch.no_grad():
        probabilities = model(torch.tensor([[1, 2, 3]]))[0, -1].softmax(-1)
    assert (counts - probabilities).abs().max() < 0.04


def test_cache_larger_than_memory_is_refused_before_decoding() -> None:
    """The cache of a Multiscreen is bounded by its windows, so its text may have any length."""
    softmax = perturbed_transformer(TransformerConfig(vocab_size=9, depth=2, heads=2, width=8))
    with refuses("the cache of 2 texts of 1,000,000,000,003 tokens needs about .* lower max_new_tokens"):
        generate(softmax, [[1, 2, 3], [1]], max_new_tokens=10**12)
    for name in ("softmax", "differential_v1"):
        plain = perturbed_transformer(TransformerConfig(vocab_size=9, depth=2, heads=4, width=8, mechanism=name))
        cache_bytes = (
            Generation(plain, make_requests([[1] * 60, [2]], max_new_tokens=4)).run()._cache.nbytes
        )  # 64 entries per head
        with pytest.raises(KeysiftError) as caught:
            generate(plain, [[1]] * 2, max_new_tokens=10**12 - 1)
        estimate = float(str(caught.value).split("about ")[1].split(" GB")[0]) * 1e9
        assert estimate == pytest.approx(cache_bytes / 64 * 1e12, rel=0.02)
    windowed = Generation(
        perturbed_multiscreen(TINY, windows=(2.5, 6.0, 9.3)), make_requests([[1, 2]], max_new_tokens=10**12)
    )
    assert next(windowed).token is not None


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
    with refuses("a prompt must be a list of token ids"):
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
        ({"top_k": 5}, "top_k, top_p and min_p need a temperature above 0, got temperature 0"),
    ):
        with refuses(text):
            Sampling(**wrong)
