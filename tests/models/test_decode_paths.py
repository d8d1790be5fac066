"""When the compiled decode step is used: changed models, other callers and wrong arguments."""

import copy
import ctypes
import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from keysift.kernels.attend import force_backend
from keysift.kernels.cpu import library
from keysift.models.language_model import LanguageModel
from keysift.nn.decode_step import DecodeStep, through_modules
from keysift.nn.decode_weights import NotDescribed, norm
from keysift.nn.inference import Inference
from keysift.nn.tap import trace
from tests.machine import needs_kernel
from tests.models.checks import TINY, close, perturbed_multiscreen, perturbed_transformer, tokens_for
from tests.models.test_decode import MODELS, SMALL, decoded, path
from tests.refusals import refuses

pytestmark = needs_kernel


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def compiled_step(model: LanguageModel, inference: Inference | None = None) -> DecodeStep:
    return DecodeStep(model, model.layers, model.decode_ends, inference or Inference())


def change_in_place(model: LanguageModel) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.1)


def change_tensors(model: LanguageModel) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.1


def change_parameters(model: LanguageModel) -> None:
    layer = model.layers[0]
    for module in layer.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(parameter * 1.1))


def change_module(model: LanguageModel) -> None:
    inner = model.layers[1].tiles if hasattr(model.layers[1], "tiles") else model.layers[1].attention
    inner.q_proj = copy.deepcopy(inner.q_proj)
    inner.q_proj.weight.copy_(inner.q_proj.weight.roll(1, 0))


def change_layer(model: LanguageModel) -> None:
    model.layers[0] = copy.deepcopy(model.layers[1])


def add_hook(model: LanguageModel) -> None:
    model.layers[0].register_forward_hook(lambda module, args, output: output * 1.1)


def replace_forward(model: LanguageModel) -> None:
    forward = model.layers[0].forward
    model.layers[0].forward = lambda *args: forward(*args) * 1.1  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["short windows", "softmax, shared keys"])
@pytest.mark.parametrize(
    "change",
    [change_in_place, change_tensors, change_parameters, change_module, change_layer, add_hook, replace_forward],
)
def test_changes_of_the_model_are_seen(name: str, change: Callable[[LanguageModel], None]) -> None:
    model = MODELS[name]()
    tokens = tokens_for(model, 2, 12)
    before = decoded(model, tokens, 6)
    change(model)
    after = decoded(model, tokens, 6)
    with through_modules():
        close(after, decoded(model, tokens, 6))
    assert (after - before).abs().max() > 1e-3


def test_a_window_changed_between_two_tokens() -> None:
    model = MODELS["short windows"]()
    tokens = tokens_for(model, 1, 30)

    def change_midway() -> Tensor:
        changed = copy.deepcopy(model)
        cache = changed.cache(1)
        decoded(changed, tokens[:, :20], 5, cache)
        changed.layers[0].tiles.scalars.s_w.data.sub_(0.3)
        return decoded(changed, tokens[:, 20:], 0, cache)

    result = change_midway()
    with through_modules():
        close(result, change_midway())


def test_a_listener_takes_the_path_through_the_modules() -> None:
    model = MODELS["short windows"]()
    tokens, cache = tokens_for(model, 2, 9), model.cache(2)
    decoded(model, tokens[:, :8], 5, cache)
    with trace(model, "layers.*.relevance") as seen:
        model(tokens[:, 8:], cache=cache)
        assert path(model, cache) == "modules: a module has a hook, or a tap has a listener"
    assert len(seen) == 2


def test_unknown_options_are_refused() -> None:
    model = MODELS["short windows"]()
    cache, token = model.cache(1), tokens_for(model, 1, 1)
    assert path(model, cache) == "compiled"
    for call in (model, model.hidden):
        with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
            call(token, cache=cache, mask=None)
        with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
            call(token, cache=cache, mask=token > 0)
    assert cache.lengths == [0]


def test_other_paths_say_why() -> None:
    model, token = MODELS["short windows"](), torch.zeros(2, 1, dtype=torch.int64)
    cache = model.cache(2)
    assert model.explain_decode(token) == "modules: there is no cache"
    assert "one token per row" in model.explain_decode(token.repeat(1, 2), cache=cache)
    assert "1 to 8 rows" in model.explain_decode(token, cache=model.cache(3))
    assert "1 to 8 rows" in model.explain_decode(torch.zeros(9, 1, dtype=torch.int64), cache=model.cache(9))
    assert "padding" in model.explain_decode(token, keep=token == 0, cache=cache)
    assert "out of range" in model.explain_decode(token + 9, cache=cache)
    with force_backend("dense"):
        assert "forced" in path(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in path(model)
    with torch.device("cpu"):
        assert "a mode of torch" in path(model)
    with torch.enable_grad():
        assert path(model) == "modules: gradients are recorded"
        assert path(model.requires_grad_(False)) == "compiled"
    assert "float64" in path(MODELS["short windows"]().double())
    assert "share keys" in path(perturbed_transformer(dataclasses.replace(SMALL, mechanism="screening")))
    mixed = MODELS["softmax, shared keys"]()
    mixed.layers[0].attention.q_proj.bfloat16()
    assert "more than one dtype" in path(mixed)
    transposed = MODELS["softmax, shared keys"]()
    weight = transposed.layers[0].attention.q_proj.weight
    weight.data = weight.data.t().contiguous().t()
    assert "not contiguous" in path(transposed)
    assert "on meta" in path(MODELS["softmax, shared keys"]().to("meta"))


def test_caches_of_other_models_are_left_to_the_modules() -> None:
    model = MODELS["short windows"]()
    assert "number of layers" in path(model, perturbed_multiscreen(dataclasses.replace(TINY, depth=3)).cache(2))
    assert "number of heads" in path(model, perturbed_multiscreen(dataclasses.replace(TINY, tiles=2)).cache(2))
    other = model.cache(2)
    with through_modules():
        copy.deepcopy(model).bfloat16()(tokens_for(model, 2, 3), cache=other)
    assert "another dtype" in path(model, other)


def test_wrong_calls_get_the_errors_of_the_modules() -> None:
    model = MODELS["short windows"]()
    token = torch.zeros(2, 1, dtype=torch.int64)
    cache = model.cache(2)
    model(token, cache=cache)
    with refuses(r"tokens must lie in 0\.\.8, got 9"):
        model(token + 9, cache=cache)
    with refuses("tokens must lie in 0..8, got -1"):
        model(token - 1, cache=cache)
    with refuses("the cache holds 2 rows, got tokens for 3"):
        model(token[[0, 0, 0]], cache=cache)
    with refuses("the cache holds 2 rows, got tokens for 0"):
        model(token[:0], cache=cache)
    with refuses("tokens must be int64"):
        model(token.int(), cache=cache)
    assert cache.lengths == [1, 1]


@pytest.mark.parametrize("tokens", [1, 3])
def test_caches_that_do_not_fit_are_refused(tokens: int) -> None:
    """With the same error for one token, which would take the compiled step, and for several. Nothing is written."""
    model, text = MODELS["short windows"](), torch.zeros(2, tokens, dtype=torch.int64)
    cache = model.cache(2)
    model(text, cache=cache)
    for other, reason in (
        (perturbed_multiscreen(dataclasses.replace(TINY, depth=3)), "the cache has 2 layers, the model 3"),
        (perturbed_multiscreen(dataclasses.replace(TINY, tiles=2)), r"the cache holds k of 3 heads, .*, got 2 heads"),
        (
            perturbed_multiscreen(dataclasses.replace(TINY, key_width=6)),
            r"the cache holds k of .*, got 3 heads, 6 channels",
        ),
        (copy.deepcopy(model).bfloat16(), r"the cache holds k of .* torch.float32, got .* torch.bfloat16"),
    ):
        with refuses(reason):
            other(text, cache=cache)
    with refuses("cache must come from model.cache"):
        model(text, cache={"k": text})  # type: ignore[typeddict-item]
    assert cache.lengths == [tokens, tokens]
    model(text, cache=cache)


def wrapped(model: LanguageModel) -> LanguageModel:
    model.embedding = nn.Sequential(model.embedding)  # type: ignore[assignment]
    return model


def with_layer(model: LanguageModel) -> LanguageModel:
    model.layers[0] = nn.Sequential(model.layers[0])
    return model


def with_projection(model: LanguageModel) -> LanguageModel:
    model.layers[0].tiles.q_proj = nn.Sequential(model.layers[0].tiles.q_proj)
    return model


def with_head_bias(model: LanguageModel) -> LanguageModel:
    model.lm_head = nn.Linear(16, 9)
    return model


def with_hook(model: LanguageModel) -> LanguageModel:
    model.register_forward_hook(lambda *args: None)
    return model


class Custom(LanguageModel):
    def final_hidden(self, x_BTD: Tensor) -> Tensor:
        return x_BTD


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        ("the embedding or the readout is wrapped", lambda: wrapped(MODELS["short windows"]())),
        ("the embedding is wrapped", lambda: wrapped(MODELS["softmax, shared keys"]())),
        ("a layer is a Sequential", lambda: with_layer(MODELS["short windows"]())),
        ("a part of a layer is a Sequential", lambda: with_projection(MODELS["short windows"]())),
        ("the readout has a bias", lambda: with_head_bias(MODELS["softmax, shared keys"]())),
        ("a module has a hook", lambda: with_hook(MODELS["short windows"]())),
        ("not entmax15", lambda: perturbed_transformer(dataclasses.replace(SMALL, mechanism="entmax15"))),
        ("keys stay visible beyond the window", lambda: with_kept_keys(MODELS["sliding windows"]())),
        ("does not support ALiBi", lambda: perturbed_transformer(dataclasses.replace(SMALL, position="alibi"))),
        (
            "mixed with those of the previous token",
            lambda: perturbed_transformer(dataclasses.replace(SMALL, shift="keys")),
        ),
        ("only a part of the channels", lambda: perturbed_transformer(dataclasses.replace(SMALL, rope_share=0.5))),
        ("a weight is", lambda: with_wrong_shape(MODELS["softmax, shared keys"]())),
    ],
)
def test_models_with_other_parts(reason: str, make: Callable[[], LanguageModel]) -> None:
    model = make()
    with refuses(reason, NotDescribed):
        compiled_step(model)
    assert reason in str(model._step_holder().prepare(model._make_step, Inference()))


def with_kept_keys(model: LanguageModel) -> LanguageModel:
    attention = model.layers[0].attention
    attention.position = dataclasses.replace(attention.position, kept=2)
    return model


def with_wrong_shape(model: LanguageModel) -> LanguageModel:
    model.layers[0].attention.q_proj.weight = nn.Parameter(torch.zeros(8, 16))
    return model


def test_parts_without_a_description() -> None:
    with refuses("a Custom does not describe its embedding", NotDescribed):
        Custom().decode_ends([])
    with refuses("an RMSNorm has no epsilon", NotDescribed):
        norm(nn.RMSNorm(4))


def test_the_library_checks_its_arguments() -> None:
    model, cache = MODELS["short windows"](), None
    cache = model.cache(2)
    decoded(model, tokens_for(model, 2, 8), 5, cache)
    step = model._step_holder().step
    assert step is not None
    structure, caches, out = step.decoder._model, cache.bound.structures, torch.zeros(2, 1, 9)

    def error(tokens: list[int], lengths: list[int]) -> str:
        with pytest.raises(Exception, match="rejected the call") as caught:
            step.decoder.run(caches, tokens, lengths, 0, out)
        return str(caught.value)

    assert "token 9 is not in the vocabulary" in error([0, 9], [8, 8])
    assert "token -1 is not in the vocabulary" in error([-1, 0], [8, 8])
    assert "a length is out of range" in error([0, 0], [8, -1])
    assert "batch is 0" in error([], [])
    first = ctypes.cast(structure.layers, ctypes.POINTER(library.DecodeLayer))[0]
    for field, wrong, message in (
        ("kv_heads", 2, "heads is not a multiple"),
        ("key_width", 0, "a size is out of range"),
        ("q", None, "a projection is NULL"),
        ("attention", 7, "attention 7 is unknown"),
        ("window", None, "a scalar of screening is missing"),
        ("hidden_width", 4, "a matrix of the feed-forward block is NULL"),
    ):
        right = getattr(first, field)
        setattr(first, field, wrong)
        assert message in error([0, 0], [8, 8])
        setattr(first, field, right)
    for field, wrong, message in (
        ("slots", 3, "is outside the slots"),
        ("prepared", None, "no prepared keys"),
        ("blocks", 1, "too few blocks"),
        ("k", None, "k, v or ring is NULL"),
    ):
        right = getattr(caches[0], field)
        setattr(caches[0], field, wrong)
        assert message in error([0, 0], [8, 8])
        setattr(caches[0], field, right)
