"""`generate` of transformers gives the same tokens as keysift, in every deterministic mode."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from keysift.models.generate import generate
from keysift.nn.inference import Inference
from tests.hub.keysift_models import ARCHS, CONTEXT, loaded
from tests.refusals import refuses

PROMPTS = [[5, 6, 7, 200, 9, 5, 6], [100, 3], list(range(40, 75))]
NEW = 16
SLOW = pytest.mark.slow


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name == "multiscreen" else SLOW) for name in ARCHS]
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(tmp_path_factory.mktemp("windowed"))


def padded(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    longest = max(map(len, prompts))
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    real = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(real)}


def transformers_tokens(model: Any, prompts: list[list[int]], **overrides: Any) -> list[list[int]]:
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **overrides}
    generated = model.generate(**padded(prompts), **options)
    return generated[:, max(map(len, prompts)) :].tolist()


def keysift_tokens(model: Any, prompts: list[list[int]], inference: Inference | None = None) -> list[list[int]]:
    generated = generate(model.keysift, prompts, max_new_tokens=NEW, inference=inference)
    return [row.tokens for row in generated.rows]


@pytest.mark.parametrize("cached", [True, False])
def test_greedy_tokens_equal_keysift(model: Any, cached: bool) -> None:
    expected = keysift_tokens(model, PROMPTS)
    assert len({token for row in expected for token in row}) > 5
    assert transformers_tokens(model, PROMPTS, use_cache=cached) == expected
    assert transformers_tokens(model, PROMPTS[1:2], use_cache=cached) == expected[1:2]


@pytest.mark.parametrize("cached", [True, False])
def test_window_expansion_in_generate(windowed: Any, cached: bool) -> None:
    inference = Inference(expand_windows=CONTEXT)
    expected = keysift_tokens(windowed, PROMPTS, inference)
    assert expected != keysift_tokens(windowed, PROMPTS)
    try:
        windowed.inference = inference
        assert transformers_tokens(windowed, PROMPTS, use_cache=cached) == expected
    finally:
        windowed.inference = Inference()


@SLOW
@pytest.mark.parametrize("beams", [1, 2])
def test_exact_search_in_generate(windowed: Any, beams: int) -> None:
    """Left-padded rows, one of them long enough for sketches, give the tokens of a scan."""
    long = torch.randint(0, 256, (5000,), generator=torch.Generator().manual_seed(1)).tolist()
    generated = {}
    try:
        for search in ("scan", "sketch"):
            windowed.inference = Inference(expand_windows=CONTEXT, search=search)
            options = {"num_beams": beams, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
            output = windowed.generate(
                **padded([long, PROMPTS[0]]), **options, pad_token_id=0, return_dict_in_generate=True
            )
            generated[search] = output.sequences.tolist()
            counts = [layer for layer in output.past_key_values.past.key_counts() if layer is not None]
            read, visible = (sum(int(getattr(layer, name).sum()) for layer in counts) for name in ("read", "in_window"))
            assert (read < visible) is (search == "sketch"), (search, read, visible)
    finally:
        windowed.inference = Inference()
    assert generated["sketch"] == generated["scan"]


@SLOW
def test_sampling_follows_the_seed_with_and_without_cache(model: Any) -> None:
    generated = []
    for cached in (True, False):
        torch.manual_seed(7)
        generated.append(
            transformers_tokens(model, PROMPTS[:2], do_sample=True, num_return_sequences=2, use_cache=cached)
        )
    assert generated[0] == generated[1]
    assert generated[0][0] != generated[0][1]


@SLOW
def test_beams_are_the_same_with_and_without_cache(model: Any) -> None:
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12}
    with_cache = transformers_tokens(model, PROMPTS, **options)
    assert with_cache == transformers_tokens(model, PROMPTS, **options, use_cache=False)
    assert with_cache != [row[:12] for row in keysift_tokens(model, PROMPTS) for _ in range(2)]


@SLOW
def test_assisted_decoding_gives_the_greedy_tokens(model: Any) -> None:
    repeating = [PROMPTS[0] * 4]
    expected = keysift_tokens(model, repeating)
    assert 256 not in expected[0]
    # Prompt lookup of transformers 5.5 needs an end token.
    assert transformers_tokens(model, repeating, prompt_lookup_num_tokens=5, eos_token_id=256) == expected
    assert transformers_tokens(model, repeating, assistant_model=model, eos_token_id=256) == expected


@SLOW
def test_generation_continues_from_a_returned_cache(model: Any) -> None:
    prompts = padded(PROMPTS)
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    first = model.generate(**prompts, max_new_tokens=10, return_dict_in_generate=True, **options)
    ones = torch.ones(len(PROMPTS), 10, dtype=torch.long)
    continuation = {
        "input_ids": first.sequences,
        "attention_mask": torch.cat((prompts["attention_mask"], ones), dim=1),
        "max_new_tokens": NEW - 10,
        **options,
    }
    copied = copy.deepcopy(first.past_key_values)
    continued = model.generate(**continuation, past_key_values=first.past_key_values)
    assert continued[:, prompts["input_ids"].shape[1] :].tolist() == keysift_tokens(model, PROMPTS)
    assert model.generate(**continuation, past_key_values=copied).equal(continued)


@SLOW
def test_streaming_and_stop_strings(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, TextStreamer

    model = loaded(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    streamed: list[str] = []

    class Recorder(TextStreamer):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            streamed.append(text)

    prompt = tokenizer("some text ", return_tensors="pt")
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    generated = model.generate(**prompt, **options, streamer=Recorder(tokenizer, skip_prompt=True))
    new = generated[0, prompt["input_ids"].shape[1] :].tolist()
    assert "".join(streamed).strip() == tokenizer.decode(new).strip()
    # The stop string is a printable byte, so that it is a complete character.
    stop = next(i for i, token in enumerate(new) if i > 2 and 33 <= token < 127 and token not in new[:i])
    stopped = model.generate(**prompt, **options, stop_strings=[chr(new[stop])], tokenizer=tokenizer)
    assert stopped[0, prompt["input_ids"].shape[1] :].tolist() == new[: stop + 1]


@SLOW
def test_memory_is_bounded_by_the_windows(windowed: Any) -> None:
    cache = windowed.new_cache()
    sizes = []
    for _ in range(6):
        windowed(torch.arange(40)[None], past_key_values=cache)
        sizes.append(cache.nbytes)
    assert sizes[0] == sizes[-1]
    assert cache.get_seq_length() == 240
    # A quarter of 240 keys and values: 12 channels in each of 3 tiles of 2 layers, 4 bytes each.
    assert sizes[-1] < 240 * 12 * 3 * 2 * 4 / 4


@SLOW
def test_spare_entries_allow_cropping(windowed: Any) -> None:
    tokens = padded(PROMPTS)
    expected = windowed(**tokens).logits[:, -1]
    for removed in (3, tokens["input_ids"].shape[1] - 1):  # the second cuts into the padding of the shorter rows
        cache = windowed.new_cache(spare=removed)
        windowed(**tokens, past_key_values=cache)
        cache.crop(-removed)
        again = windowed(
            tokens["input_ids"][:, -removed:], attention_mask=tokens["attention_mask"], past_key_values=cache
        )
        torch.testing.assert_close(again.logits[:, -1], expected)
    cache = windowed.new_cache()
    windowed(**tokens, past_key_values=cache)
    with refuses("cannot crop .* a finite window has overwritten keys"):
        cache.crop(-20)


@SLOW
def test_select_and_repeat_rows_of_a_cache(windowed: Any) -> None:
    tokens = padded(PROMPTS)
    cache = windowed.new_cache()
    windowed(**tokens, past_key_values=cache)
    cache.batch_select_indices(torch.tensor([True, False, True]))
    cache.batch_repeat_interleave(2)
    step = torch.full((4, 1), 9)
    mask = torch.cat((tokens["attention_mask"][[0, 0, 2, 2]], torch.ones(4, 1, dtype=torch.long)), dim=1)
    got = windowed(step, attention_mask=mask, past_key_values=cache).logits[:, -1]
    for row, prompt in zip(got, (PROMPTS[0], PROMPTS[0], PROMPTS[2], PROMPTS[2]), strict=True):
        torch.testing.assert_close(row, windowed(torch.tensor([[*prompt, 9]])).logits[0, -1])
    assert cache.layers[0].batch_size == 4
    cache.reset()
    assert cache.get_seq_length() == 0
    torch.testing.assert_close(
        windowed(torch.tensor([PROMPTS[2]]), past_key_values=cache).logits,
        windowed(torch.tensor([PROMPTS[2]])).logits,
    )


@SLOW
@pytest.mark.parametrize("kind", ["static", "offloaded", "quantized", "offloaded_static"])
def test_other_caches_are_refused(windowed: Any, kind: str) -> None:
    with refuses(f"a {kind} cache cannot hold windows of different lengths; leave cache_implementation out"):
        transformers_tokens(windowed, PROMPTS, cache_implementation=kind)


def test_only_keysift_layers_write_to_a_window_cache(windowed: Any) -> None:
    from transformers import DynamicCache

    with refuses("a DynamicCache cannot hold windows of different lengths; .* model.new_cache"):
        windowed(torch.tensor([[1]]), past_key_values=DynamicCache())
    cache, some = windowed.new_cache(), torch.zeros(1, 3, 1, 4)
    with refuses("only the layers of its keysift model write to a WindowCache"):
        cache.update(some, some, 0)
    with refuses("only the layers of its keysift model write to a WindowCache"):
        cache.layers[0].lazy_initialization(some, some)
    with refuses("a WindowCache cannot be offloaded"):
        cache.layers[0].offload()
    assert cache.layers[0].get_mask_sizes(3) == (3, 0)
    assert cache.layers[0].get_max_length() == -1
    assert cache.layers[0].nbytes == 0
