"""The compiled decode step equals the path through the modules."""

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from keysift.kernels.cpu import library
from keysift.models.language_model import LanguageModel
from keysift.models.transformer import TransformerConfig
from keysift.nn.cache import Cache
from keysift.nn.decode_step import through_modules
from keysift.nn.inference import Inference
from tests.forked import run_pytest
from tests.machine import needs_kernel
from tests.models.checks import (
    TINY,
    cache_matches_forward,
    close,
    perturbed_multiscreen,
    perturbed_transformer,
    tokens_for,
)

pytestmark = needs_kernel
WIDE = dataclasses.replace(TINY, vocab_size=40, tiles=2, width=37, key_width=16, value_width=64)
SMALL = TransformerConfig(vocab_size=9, depth=2, heads=4, width=16, key_heads=2)
MODELS: dict[str, Callable[[], LanguageModel]] = {
    "short windows": lambda: perturbed_multiscreen(TINY, windows=(2.5, 6.0, 9.3)),
    "long windows": lambda: perturbed_multiscreen(WIDE, windows=(40.5, 1e6)),
    "no mipe, no gate, no norm": lambda: perturbed_multiscreen(
        dataclasses.replace(TINY, position="none", gate=False, norm="none")
    ),
    "screening with rope": lambda: perturbed_multiscreen(dataclasses.replace(TINY, position="rope", acceptance=0.9)),
    "rotation up to a window of 8": lambda: perturbed_multiscreen(
        dataclasses.replace(TINY, window_threshold=8.0), windows=(2.5, 7.0, 9.3)
    ),
    "sliding windows": lambda: perturbed_transformer(dataclasses.replace(SMALL, window=(5, 0))),
    "softmax, shared keys": lambda: perturbed_transformer(SMALL),
    "softmax, all options": lambda: perturbed_transformer(
        dataclasses.replace(
            SMALL,
            vocab_size=35,
            width=40,
            head_width=18,
            key_heads=1,
            qk_norm=True,
            attention_bias="qkvo",
            final_gain=True,
            tied_embeddings=False,
            rope_rates="yarn:factor=4,original=8",
        )
    ),
    "several tasks of each matrix product": lambda: perturbed_transformer(
        dataclasses.replace(SMALL, vocab_size=1500, width=64, hidden_width=700, head_width=80)
    ),
    "softmax and screening": lambda: perturbed_transformer(
        dataclasses.replace(SMALL, key_heads=4, mechanism=("screening", "softmax"), window=(4, 0))
    ),
}
each_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def decoded(model: LanguageModel, tokens: Tensor, prompt: int, cache: Cache | None = None) -> Tensor:
    """Logits of every token after the prompt, one call each."""
    cache = model.cache(len(tokens)) if cache is None else cache
    if prompt:
        model(tokens[:, :prompt], cache=cache)
    steps = [model(tokens[:, t : t + 1], cache=cache) for t in range(prompt, tokens.shape[1])]
    return torch.cat(steps, dim=1)


def path(model: LanguageModel, cache: Cache | None = None) -> str:
    cache = model.cache(2) if cache is None else cache
    return model.explain_decode(torch.zeros(cache.batch, 1, dtype=torch.int64), cache=cache)


@each_model
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_equals_the_modules(name: str, batch: int) -> None:
    model = MODELS[name]()
    tokens = tokens_for(model, batch, 70)
    result = decoded(model, tokens, 20)
    assert path(model) == "compiled"
    with through_modules():
        close(result, decoded(model, tokens, 20))


@each_model
def test_equals_the_forward_pass(name: str) -> None:
    cache_matches_forward(MODELS[name](), (1, 1, 30, 1, 1, 5, *[1] * 20, 40, 1, 1))


@each_model
def test_far_from_the_first_position(name: str) -> None:
    cache_matches_forward(MODELS[name](), (9, 1, 1, 1), start=1_000_000)


@pytest.mark.parametrize("name", ["long windows", "softmax, shared keys", "several tasks of each matrix product"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_long_texts_and_threads(name: str, threads: int) -> None:
    """Tasks of several pieces; the number of threads does not change a bit."""
    model = MODELS[name]()
    tokens = tokens_for(model, 2, 2503)
    expected = decoded(model, tokens, 2500)
    model._step_holder().step.decoder.threads = threads  # type: ignore[union-attr]
    assert torch.equal(decoded(model, tokens, 2500), expected)
    close(expected, model(tokens)[:, 2500:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@each_model
def test_half_precision_errs_no_more_than_the_modules(name: str, dtype: torch.dtype) -> None:
    model = MODELS[name]().to(dtype)
    exact_model = copy.deepcopy(model).double()
    tokens = tokens_for(model, 2, 40)
    exact = exact_model(tokens)[:, 20:]
    result = decoded(model, tokens, 20)
    assert path(model) == "compiled"
    assert result.dtype == dtype
    with through_modules():
        plain = decoded(model, tokens, 20)
    scale = exact.abs().max()
    error, plain_error = ((x.double() - exact).abs().max() / scale for x in (result, plain))
    assert error <= 1.5 * plain_error + torch.finfo(dtype).eps, f"{error:.1e}, the modules {plain_error:.1e}"


@pytest.mark.parametrize("inference", [Inference(expand_windows=5), Inference(rope_factor=3.0)], ids=["SWE", "rope"])
def test_inference_options(inference: Inference) -> None:
    model = MODELS["short windows" if inference.expand_windows else "softmax, shared keys"]()
    tokens = tokens_for(model, 2, 40)
    result = decoded(model, tokens, 10, model.cache(2, inference=inference))
    close(result, model(tokens, inference=inference)[:, 10:])
    assert (result - decoded(model, tokens, 10)).abs().max() > 1e-3


def test_cropped_and_reordered_caches_prepare_their_keys_again() -> None:
    """Keys that a chunk overwrites after a crop, and rows that change places."""
    model = perturbed_multiscreen(TINY, windows=(5.0, 12.0, 1e6))
    first, second, third = tokens_for(model, 2, 30), tokens_for(model, 2, 12, 5), tokens_for(model, 2, 9, 6)
    cache = model.cache(2, spare=8)
    decoded(model, first, 20, cache)
    cache.crop(6)
    model(second[:, :4], cache=cache)
    result = decoded(model, second[:, 4:], 0, cache)
    text = torch.cat((first[:, :24], second), dim=1)
    close(result, model(text)[:, 28:])
    cache.crop(torch.tensor([3, 1]))
    cache.select(torch.tensor([1, 0, 1]))
    rows = [text[1, :35], text[0, :33], text[1, :35]]
    assert path(model, cache) == "compiled"
    result = decoded(model, third[[0, 1, 0]], 0, cache)
    for row, (past, new) in enumerate(zip(rows, third[[0, 1, 0]], strict=True)):
        close(result[row], model(torch.cat((past, new))[None])[0, -9:])


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj"])
@each_model
def test_rows_that_see_nan_are_nan_as_through_the_modules(name: str, part: str) -> None:
    """Only some channels of one layer are NaN; later tokens see the key as long as it is in their window."""
    model = MODELS[name]()
    layer = model.layers[1]
    projection = getattr(layer.tiles if hasattr(layer, "tiles") else layer.attention, part)
    tokens = tokens_for(model, 2, 30)

    def with_one_nan() -> Tensor:
        cache = model.cache(2)
        start = decoded(model, tokens[:, :10], 5, cache)
        number = projection.weight[1, 0].clone()
        projection.weight[1, 0] = torch.nan
        at = model(tokens[:, 10:11], cache=cache)
        projection.weight[1, 0] = number
        return torch.cat((start, at, decoded(model, tokens[:, 11:], 0, cache)), dim=1)

    result = with_one_nan()
    with through_modules():
        expected = with_one_nan()
    assert torch.equal(result.isnan(), expected.isnan())
    assert result[:, 5].isnan().all()
    assert result[:, :5].isfinite().all()
    close(result.nan_to_num(), expected.nan_to_num())


def test_copies_of_models_and_caches_decode_on_their_own() -> None:
    model = MODELS["short windows"]()
    tokens, cache = tokens_for(model, 2, 20), model.cache(2)
    decoded(model, tokens[:, :15], 5, cache)
    twins = (copy.deepcopy((model, cache)), pickle.loads(pickle.dumps((model, cache))))
    expected = decoded(model, tokens[:, 15:], 0, cache)
    for twin, twin_cache in twins:
        assert torch.equal(decoded(twin, tokens[:, 15:], 0, twin_cache), expected)


@pytest.mark.slow
@pytest.mark.parametrize("isa", library.instruction_sets()[1:])
def test_every_variant(isa: str) -> None:
    outcome = run_pytest(__file__, "-k", "not variant", KEYSIFT_ISA=isa)
    assert outcome.code == 0, outcome.output[-2000:]
