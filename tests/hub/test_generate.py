"""transformers' `generate` with keysift's cache gives keysift's own tokens, in every mode that has one answer."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from keysift.models.generate import generate
from keysift.nn.inference import Inference
from tests.hub.ours import ARCHS, CONTEXT, loaded
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


def theirs(model: Any, prompts: list[list[int]], **more: Any) -> list[list[int]]:
    asked = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **more}
    made = model.generate(**padded(prompts), **asked)
    return made[:, max(map(len, prompts)) :].tolist()


def own(model: Any, prompts: list[list[int]], inference: Inference | None = None) -> list[list[int]]:
    made = generate(model.keysift, prompts, max_new_tokens=NEW, inference=inference)
    return [row.tokens for row in made.rows]


@pytest.mark.parametrize("cached", [True, False])
def test_greedy_tokens_are_keysifts_own(model: Any, cached: bool) -> None:
    expected = own(model, PROMPTS)
    assert len({token for row in expected for token in row}) > 5
    assert theirs(model, PROMPTS, use_cache=cached) == expected
    assert theirs(model, PROMPTS[1:2], use_cache=cached) == expected[1:2]


@pytest.mark.parametrize("cached", [True, False])
def test_window_expansion_is_followed(windowed: Any, cached: bool) -> None:
    chosen = Inference(expand_windows=CONTEXT)
    expected = own(windowed, PROMPTS, chosen)
    assert expected != own(windowed, PROMPTS)
    try:
        windowed.inference = chosen
        assert theirs(windowed, PROMPTS, use_cache=cached) == expected
    finally:
        windowed.inference = Inference()


@SLOW
def test_sampling_follows_the_seed_with_and_without_cache(model: Any) -> None:
    made = []
    for cached in (True, False):
        torch.manual_seed(7)
        made.append(theirs(model, PROMPTS[:2], do_sample=True, num_return_sequences=2, use_cache=cached))
    assert made[0] == made[1]
    assert made[0][0] != made[0][1]


@SLOW
def test_beams_are_the_same_with_and_without_cache(model: Any) -> None:
    asked = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 12}
    with_cache = theirs(model, PROMPTS, **asked)
    assert with_cache == theirs(model, PROMPTS, **asked, use_cache=False)
    assert with_cache != [row[:12] for row in own(model, PROMPTS) for _ in range(2)]


@SLOW
def test_assisted_decoding_gives_the_greedy_tokens(model: Any) -> None:
    repeating = [PROMPTS[0] * 4]
    expected = own(model, repeating)
    assert 256 not in expected[0]
    # transformers 5.5 cannot look up prompts without an end token.
    assert theirs(model, repeating, prompt_lookup_num_tokens=5, eos_token_id=256) == expected
    assert theirs(model, repeating, assistant_model=model, eos_token_id=256) == expected


@SLOW
def test_generation_continues_from_a_returned_cache(model: Any) -> None:
    prompts = padded(PROMPTS)
    asked = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    first = model.generate(**prompts, max_new_tokens=10, return_dict_in_generate=True, **asked)
    ones = torch.ones(len(PROMPTS), 10, dtype=torch.long)
    more = {
        "input_ids": first.sequences,
        "attention_mask": torch.cat((prompts["attention_mask"], ones), dim=1),
        "max_new_tokens": NEW - 10,
        **asked,
    }
    copied = copy.deepcopy(first.past_key_values)
    rest = model.generate(**more, past_key_values=first.past_key_values)
    assert rest[:, prompts["input_ids"].shape[1] :].tolist() == own(model, PROMPTS)
    assert model.generate(**more, past_key_values=copied).equal(rest)


@SLOW
def test_streaming_and_stop_strings(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, TextStreamer

    model = loaded(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    told: list[str] = []

    class Told(TextStreamer):  # type: ignore[misc]
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            told.append(text)

    prompt = tokenizer("some text ", return_tensors="pt")
    asked = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    made = model.generate(**prompt, **asked, streamer=Told(tokenizer, skip_prompt=True))
    new = made[0, prompt["input_ids"].shape[1] :].tolist()
    assert "".join(told).strip() == tokenizer.decode(new).strip()
    # Bytes that are text on their own, so that the stop string can be found.
    stop = next(i for i, token in enumerate(new) if i > 2 and 33 <= token < 127 and token not in new[:i])
    stopped = model.generate(**prompt, **asked, stop_strings=[chr(new[stop])], tokenizer=tokenizer)
    assert stopped[0, prompt["input_ids"].shape[1] :].tolist() == new[: stop + 1]


@SLOW
def test_memory_is_bounded_by_the_windows(windowed: Any) -> None:
    cache = windowed.new_cache()
    held = []
    for _ in range(6):
        windowed(torch.arange(40)[None], past_key_values=cache)
        held.append(cache.nbytes)
    assert held[0] == held[-1]
    assert cache.get_seq_length() == 240
    # A quarter of 240 keys and values: 12 channels in each of 3 tiles of 2 layers, 4 bytes each.
    assert held[-1] < 240 * 12 * 3 * 2 * 4 / 4


@SLOW
def test_what_a_cache_forgets_can_be_cropped_with_spare_entries(windowed: Any) -> None:
    tokens = padded(PROMPTS)
    whole = windowed(**tokens).logits[:, -1]
    for removed in (3, tokens["input_ids"].shape[1] - 1):  # the second cuts into the padding of the shorter rows
        cache = windowed.new_cache(spare=removed)
        windowed(**tokens, past_key_values=cache)
        cache.crop(-removed)
        again = windowed(
            tokens["input_ids"][:, -removed:], attention_mask=tokens["attention_mask"], past_key_values=cache
        )
        torch.testing.assert_close(again.logits[:, -1], whole)
    cache = windowed.new_cache()
    windowed(**tokens, past_key_values=cache)
    with refuses("cannot crop .* a finite window has overwritten keys"):
        cache.crop(-20)


@SLOW
def test_rows_of_a_cache_are_chosen_and_repeated(windowed: Any) -> None:
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
        theirs(windowed, PROMPTS, cache_implementation=kind)


def test_a_cache_is_for_keysifts_layers_alone(windowed: Any) -> None:
    from transformers import DynamicCache

    with refuses("a DynamicCache cannot hold windows of different lengths; .* model.new_cache"):
        windowed(torch.tensor([[1]]), past_key_values=DynamicCache())
    cache, some = windowed.new_cache(), torch.zeros(1, 3, 1, 4)
    with refuses("a window cache is written by the layers of the keysift model"):
        cache.update(some, some, 0)
    with refuses("a window cache is written by the layers of the keysift model"):
        cache.layers[0].lazy_initialization(some, some)
    with refuses("a window cache stays where its model is"):
        cache.layers[0].offload()
    assert cache.layers[0].get_mask_sizes(3) == (3, 0)
    assert cache.layers[0].get_max_length() == -1
    assert cache.layers[0].nbytes == 0
