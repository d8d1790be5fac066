"""Decoding with a cache gives the logits of the forward pass, for any chunks, padding, reordering and cropping."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from keysift.kernels.attend import force_backend
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS, find, register
from keysift.mechanisms.rules import RowMap
from keysift.mechanisms.spec import Promise
from keysift.models.language_model import LanguageModel
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.inference import Inference
from keysift.nn.tap import trace
from tests.machine import needs_kernel
from tests.models import checks
from tests.models.checks import TINY, close, perturbed_multiscreen, perturbed_transformer, tokens_for
from tests.refusals import refuses
from tests.representatives import slow_unless_representative

SINGLE_STEPS = (1,) * 24
UNEVEN = (5, 1, 9, 2, 1, 6)
SMALL = TransformerConfig(vocab_size=11, depth=2, heads=4, width=16, context=12)
SWE = Inference(expand_windows=5)
WINDOWS = {
    "fractional": (2.5, 6.7, 9.3),
    "integer": (2.0, 6.0, 9.0),
    "one long": (2.5, 3.0, 100.0),
    "equal": (6.0, 6.0, 6.0),
}


def multiscreen(windows: tuple[float, ...] = WINDOWS["fractional"], **change: object) -> LanguageModel:
    return perturbed_multiscreen(dataclasses.replace(TINY, **change), windows=windows)


@pytest.mark.parametrize("chunks", [SINGLE_STEPS, UNEVEN, (24,), (23, 1)], ids=["steps", "uneven", "whole", "prefill"])
@pytest.mark.parametrize("windows", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("inference", [None, SWE], ids=["plain", "swe"])
def test_any_chunking(windows: tuple[float, ...], chunks: tuple[int, ...], inference: Inference | None) -> None:
    model = multiscreen(windows)
    checks.accepts_many_keys(model, tokens_for(model, 2, 24), inference=inference)
    checks.cache_matches_forward(model, chunks, inference=inference)


@pytest.mark.parametrize(
    "change",
    [{"position": "rope"}, {"position": "none"}, {"norm": "none"}, {"gate": False}, {"acceptance": 1.0}],
    ids=str,
)
def test_every_ablation(change: dict[str, object]) -> None:
    checks.cache_matches_forward(multiscreen(**change), UNEVEN)


@pytest.mark.parametrize("start", [250, 4090, 131_066])
@pytest.mark.parametrize("chunks", [(1,) * 12, (3, 5, 4)], ids=["steps", "chunks"])
@pytest.mark.parametrize("position", ["mipe", "rope"])
def test_positions_across_powers_of_two(start: int, chunks: tuple[int, ...], position: str) -> None:
    checks.cache_matches_forward(multiscreen(position=position), chunks, start=start)
    if position == "rope":
        checks.cache_matches_forward(perturbed_transformer(SMALL), chunks, start=start)


@pytest.mark.parametrize("windows", [(255.0, 256.0, 257.0), (256.5, 300.0, 2.0)], ids=str)
@pytest.mark.parametrize("chunks", [(200, 1, 1, 98, *(1,) * 20), (290, 30)], ids=["mixed", "longer than the ring"])
def test_rings_that_wrap_around_256(windows: tuple[float, ...], chunks: tuple[int, ...]) -> None:
    checks.cache_matches_forward(multiscreen(windows), chunks, batch=1)


@pytest.mark.slow
def test_text_longer_than_4096() -> None:
    """Windows: longer than the text, exactly 4096, and 3.5."""
    model = multiscreen((5000.0, 4096.0, 3.5), depth=1)
    checks.cache_matches_forward(model, (4090, *(1,) * 10), batch=1)


NAMES = [*MECHANISMS.names(), "screening+value_gate", "differential_v1+value_gate", "sigmoid+output_head_gate"]


@pytest.mark.parametrize("name", slow_unless_representative(NAMES))
def test_every_mechanism_in_the_transformer(name: str) -> None:
    model = perturbed_transformer(dataclasses.replace(SMALL, mechanism=name))
    for chunks in (UNEVEN, SINGLE_STEPS):
        checks.cache_matches_forward(model, chunks)


@pytest.mark.parametrize("name", ["softmax", "screening", "differential_v1", "differential_v2", "softmax+value_gate"])
def test_shared_key_heads(name: str) -> None:
    checks.cache_matches_forward(perturbed_transformer(dataclasses.replace(SMALL, mechanism=name, key_heads=2)), UNEVEN)


def test_a_hybrid_stack_and_scaled_rope() -> None:
    model = perturbed_transformer(dataclasses.replace(SMALL, mechanism=("screening", "softmax"), qk_norm=True))
    checks.cache_matches_forward(model, UNEVEN, inference=Inference(rope_factor=4.0))
    checks.cache_matches_forward(model, UNEVEN, inference=Inference(rope_scaling="yarn:factor=4,original=8"))
    checks.cache_matches_forward(model, UNEVEN, inference=SWE)


@pytest.mark.parametrize("name", ["screening", "softmax", "differential_v2", "softmax+value_gate"])
@torch.no_grad()
def test_filled_tokens_are_seen_and_the_last_layer_does_not_attend(name: str) -> None:
    model = perturbed_transformer(dataclasses.replace(SMALL, mechanism=name, key_heads=2))
    tokens = tokens_for(model, 2, 24)
    cache = model.cache(2)
    # Without the values that o_proj of the last layer reads, attention there would fail.
    last = model.layers[-1].attention.o_proj
    model.layers[-1].attention.o_proj = None
    model.fill(tokens[:, :9], cache=cache)
    model.fill(tokens[:, 9:20], cache=cache)
    model.layers[-1].attention.o_proj = last
    close(model(tokens[:, 20:], cache=cache), model(tokens)[:, 20:])


@torch.no_grad()
def test_a_watched_layer_is_not_skipped() -> None:
    model = multiscreen()
    tokens = tokens_for(model, 1, 6)
    with trace(model, "layers.*.relevance") as seen:
        model.fill(tokens, cache=model.cache(1))
    assert f"layers.{len(model.layers) - 1}.tiles.relevance" in seen
    calls = []
    handle = model.layers[-1].register_forward_hook(lambda *_: calls.append(1))
    model.fill(tokens, cache=model.cache(1))
    handle.remove()
    model.fill(tokens, cache=model.cache(1))
    assert len(calls) == 1


@pytest.fixture(params=["multiscreen", "swe", "softmax", "ssmax"])
def model_and_inference(request: pytest.FixtureRequest) -> tuple[LanguageModel, Inference]:
    if request.param in ("multiscreen", "swe"):
        return multiscreen(), SWE if request.param == "swe" else Inference()
    return perturbed_transformer(dataclasses.replace(SMALL, mechanism=request.param)), Inference()


ModelAndInference = tuple[LanguageModel, Inference]


@torch.no_grad()
def test_left_padding(model_and_inference: ModelAndInference) -> None:
    """Rows of different lengths, left-padded and decoded in a batch, give the logits of each row alone."""
    model, inference = model_and_inference
    lengths = (3, 14, 9)
    texts = [tokens_for(model, 1, length + 8, seed)[0] for seed, length in enumerate(lengths)]
    tokens = torch.zeros(3, 14, dtype=torch.int64)
    keep = torch.zeros(3, 14, dtype=torch.bool)
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        tokens[row, 14 - length :], keep[row, 14 - length :] = text[:length], True
    later = torch.stack([text[length:] for text, length in zip(texts, lengths, strict=True)])
    full = model(torch.cat((tokens, later), 1), keep=torch.cat((keep, torch.ones(3, 8).bool()), 1), inference=inference)
    cache = model.cache(3, inference=inference)
    pieces = [model(tokens[:, :6], keep=keep[:, :6], cache=cache), model(tokens[:, 6:], keep=keep[:, 6:], cache=cache)]
    pieces += [model(later[:, :3], cache=cache), *(model(later[:, i : i + 1], cache=cache) for i in range(3, 8))]
    cached = torch.cat(pieces, 1)
    assert cache.lengths == [length + 8 for length in lengths]
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        alone = model(text[None], inference=inference)[0]
        close(full[row, 14 - length :], alone)
        close(cached[row, 14 - length :], alone)
    assert full.isfinite().all()
    assert cached.isfinite().all()


@torch.no_grad()
def test_a_row_that_pauses(model_and_inference: ModelAndInference) -> None:
    """A token with keep=False is neither stored nor attended to, at any step."""
    model, inference = model_and_inference
    text = tokens_for(model, 2, 12)
    cache = model.cache(2, inference=inference)
    model(text[:, :6], cache=cache)
    for step in range(6):
        keep = torch.tensor([[True], [step % 2 == 0]])
        step_tokens = torch.stack((text[0, 6 + step], text[1, 6 + step // 2]))[:, None]
        out = model(step_tokens, keep=keep, cache=cache)
        close(out[0], model(text[:1, : 7 + step], inference=inference)[0, -1:])
        if step % 2 == 0:
            close(out[1], model(text[1:, : 7 + step // 2], inference=inference)[0, -1:])


@torch.no_grad()
def test_beam_search_reordering(model_and_inference: ModelAndInference) -> None:
    """After `select`, each row continues the beam it was copied from."""
    model, inference = model_and_inference
    text = tokens_for(model, 1, 10)
    cache = model.cache(1, inference=inference)
    model(text, cache=cache)
    cache.repeat(3)
    beams = text.repeat(3, 1)
    generator = torch.Generator().manual_seed(5)
    for order in ([0, 1, 2], [2, 2, 0], [1, 0, 0], [0, 2, 1], [2, 1, 1]):
        rows = torch.tensor(order)
        cache.select(rows)
        step = torch.randint(0, model.config.vocab_size, (3, 1), generator=generator)
        beams = torch.cat((beams[rows], step), 1)
        close(model(step, cache=cache), model(beams, inference=inference)[:, -1:])
    cache.select(torch.tensor([1]))
    close(model(step[1:2], cache=cache), model(torch.cat((beams, step), 1), inference=inference)[1:2, -1:])


@torch.no_grad()
def test_crop_and_continue(model_and_inference: ModelAndInference) -> None:
    model, inference = model_and_inference
    text, other = tokens_for(model, 2, 20), tokens_for(model, 2, 20, seed=9)
    cache = model.cache(2, inference=inference, spare=4)
    model(text[:, :13], cache=cache)
    model(text[:, 13:14], cache=cache)
    cache.crop(5)
    mixed = torch.cat((text[:, :9], other[:, 9:]), 1)
    full = model(mixed, inference=inference)
    pieces = [model(mixed[:, 9:11], cache=cache), *(model(mixed[:, i : i + 1], cache=cache) for i in range(11, 20))]
    close(torch.cat(pieces, 1), full[:, 9:])


@torch.no_grad()
def test_crop_rows_by_their_own_counts() -> None:
    model = perturbed_transformer(SMALL)
    text = tokens_for(model, 2, 12)
    cache = model.cache(2)
    model(text[:, :9], cache=cache)
    cache.crop(torch.tensor([0, 4]))
    step = torch.stack((text[0, 9], text[1, 5]))[:, None]
    out = model(step, cache=cache)
    close(out[0], model(text[:1, :10])[0, -1:])
    close(out[1], model(text[1:, :6])[0, -1:])


@torch.no_grad()
def test_crop_is_limited_by_the_ring() -> None:
    """A ring of ceil(w) entries holds one more than the next query needs. A refused crop changes nothing."""
    model = multiscreen()
    text = tokens_for(model, 1, 20)
    cache = model.cache(1)
    model(text[:, :15], cache=cache)
    with refuses(r"cannot crop 2 tokens.*spare=1"):
        cache.crop(2)
    close(model(text[:, 15:16], cache=cache), model(text[:, :16])[:, -1:])
    cache.crop(1)
    with refuses("cannot crop 1 tokens"):
        cache.crop(1)
    close(model(text[:, 15:17], cache=cache), model(text[:, :17])[:, -2:])
    with refuses("between 0 and all"):
        cache.crop(18)
    with refuses("between 0 and all"):
        cache.crop(-1)


@torch.no_grad()
def test_crop_everything_before_the_first_wrap() -> None:
    model = multiscreen((30.0, 40.0, 50.5))
    text = tokens_for(model, 1, 20)
    cache = model.cache(1)
    model(text, cache=cache)
    cache.crop(20)
    close(model(text[:, :7], cache=cache), model(text[:, :7]))


@torch.no_grad()
def test_cache_memory() -> None:
    """A finite window stores ceil(w) entries per tile. An infinite window grows with the text."""
    windows = (2.5, 6.0, 9.3)
    model = multiscreen(windows)
    sizes = []
    for inference in (Inference(), SWE):
        cache = model.cache(1, inference=inference)
        grown = []
        for _ in range(4):
            model(tokens_for(model, 1, 100), cache=cache)
            grown.append(cache.nbytes)
        sizes.append(grown)
    entries = 3 + 6 + 10 + 1
    per_entry = (TINY.key_width + TINY.value_width) * 4
    assert sizes[0] == [TINY.depth * entries * per_entry] * 4
    assert sizes[1][-1] > sizes[1][0]


@pytest.fixture
def peeking() -> Iterator[str]:
    """A mechanism that is not causal: softmax over the queries, so that a later query changes an earlier output."""

    def weigh(x_BHTS: torch.Tensor, keep_BHTS: torch.Tensor) -> torch.Tensor:
        return x_BHTS.masked_fill(~keep_BHTS, -torch.inf).softmax(-2).nan_to_num(0.0)

    softmax = find("softmax")
    holds = softmax.holds - {Promise.CAUSAL}
    register(dataclasses.replace(softmax, name="peeking", rule=RowMap(weigh_row=weigh), holds=holds))
    yield "peeking"
    MECHANISMS.remove("peeking")


def test_a_mechanism_that_is_not_causal_refuses_a_cache(peeking: str) -> None:
    model = perturbed_transformer(dataclasses.replace(SMALL, mechanism=peeking))
    model(tokens_for(model, 1, 4))
    with refuses("peeking does not promise that a later key does not change an earlier output"):
        model.cache(1)


def test_refusals() -> None:
    model = multiscreen()
    cache = model.cache(2)
    tokens = tokens_for(model, 2, 4)
    with refuses("cache holds 2 rows, got tokens for 1"):
        model(tokens[:1], cache=cache)
    with refuses("a cache has positions of its own; leave out keep and cache, or positions"):
        model(tokens, cache=cache, positions=Positions.counted(4, start=3))
    with refuses("a cache has its own inference options"):
        model(tokens, cache=cache, inference=SWE)
    with refuses("int64 row numbers"):
        cache.select(torch.tensor([0.0]))
    with refuses(r"holds rows 0 to 1, got \[0, 2\]"):
        cache.select(torch.tensor([0, 2]))
    with refuses(r"holds rows 0 to 1, got \[-1\]"):
        cache.select(torch.tensor([-1]))
    with refuses("repeated at least once, got 0"):
        cache.repeat(0)
    with refuses("int64 row numbers, at least one"):
        cache.select(torch.tensor([], dtype=torch.int64))
    for spare, batch in ((-1, 2), (0, 0)):
        with refuses(f"at least 1 row and at least 0 spare entries, got {batch} and {spare}"):
            model.cache(batch, spare=spare)


@torch.no_grad()
def test_refused_operations_change_nothing() -> None:
    """A refused select or crop leaves every layer as it was."""
    model = perturbed_transformer(dataclasses.replace(SMALL, mechanism=("screening", "softmax")))
    text = tokens_for(model, 2, 9)
    cache = model.cache(2)
    model(text[:, :8], cache=cache)
    with refuses("holds rows 0 to 1"):
        cache.select(torch.tensor([0, 1, 2]))
    for counts in (torch.tensor([1]), torch.tensor([1, 1, 1]), torch.tensor([[1], [1]]), torch.tensor([1.0, 1.0])):
        with refuses("crop takes one number, or an int64 tensor with a number for each of 2 rows"):
            cache.crop(counts)
    assert cache.lengths == [8, 8]
    assert {store.batch for store in cache.layers} == {2}
    close(model(text[:, 8:], cache=cache), model(text)[:, 8:])


def test_no_gradient_flows_into_the_cache() -> None:
    model = multiscreen()
    tokens = tokens_for(model, 1, 6)
    cache = model.cache(1)
    model(tokens[:, :3], cache=cache)
    model(tokens[:, 3:], cache=cache).sum().backward()
    assert all(not entry.requires_grad for store in cache.layers for entry in store.entries.values())
    assert model.layers[0].tiles.q_proj.weight.grad.abs().max() > 0


@needs_kernel
@torch.no_grad()
def test_rows_are_decoded_by_the_compiled_kernel() -> None:
    """Rings and rows of different lengths, left-padded prompts, and rows that pause."""
    model, tokens = multiscreen(), tokens_for(multiscreen(), 3, 24)
    cache = model.cache(3)
    rows: list[list[int]] = [[], [], []]
    padding = [(2, 0, 6), (0, 0, 3), *((0, row == 1, row == 2) for row in range(4)), (1, 0, 2), (0, 0, 0)]
    for length, pads in zip((7, 5, 1, 1, 1, 1, 3, 1), padding, strict=True):
        piece = tokens[:, :length]
        keep = torch.arange(length) >= torch.tensor([int(pad) for pad in pads])[:, None]
        with force_backend("screening_cpu"):
            out = model(piece, keep=keep, cache=cache)
        tokens = tokens.roll(-length, dims=1)
        for number, row in enumerate(rows):
            row += piece[number][keep[number]].tolist()
            real = int(keep[number].sum())
            if real:
                close(out[number, -real:], model(torch.tensor([row]))[0, -real:])
    assert cache.lengths == [len(row) for row in rows]
    assert len(set(cache.lengths)) == 3


@pytest.mark.parametrize("tokens", [1, 4])
def test_a_first_call_of_padding_only(tokens: int) -> None:
    """It stores nothing; its outputs are finite, and the next call gives the logits of the forward pass."""
    for model in (
        multiscreen(),
        *(
            Transformer(dataclasses.replace(SMALL, mechanism=name), torch.Generator().manual_seed(0))
            for name in ("softmax", "entmax15", "softpick")
        ),
    ):
        text = tokens_for(model, 2, 6)
        cache = model.cache(2)
        assert model(text[:, :tokens], keep=torch.zeros(2, tokens, dtype=torch.bool), cache=cache).isfinite().all()
        assert cache.lengths == [0, 0]
        close(model(text, cache=cache), model(text))
