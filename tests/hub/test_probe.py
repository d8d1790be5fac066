"""A probe sees what a model computes and changes nothing, whatever the family, the implementation and the padding."""

from typing import Any

import pytest
import torch
from torch import Tensor

from keysift.hub.probe import probed
from keysift.hub.subject import Pretrained
from keysift.lens.reading import Reading
from keysift.lens.subject import pad
from tests.hub.models import build, tokenizer
from tests.refusals import refuses

TEXTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 2, 3], [7, 8, 9, 1, 2]]
EAGER_ONLY = ("gemma2",)
FAMILIES = ["gpt2", "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2"]
CASES = [(family, way) for family in FAMILIES for way in ("sdpa", "eager") if (family, way) != ("gemma2", "sdpa")]


def plain(model: Any, texts: list[list[int]]) -> Any:
    tokens, keep, _ = pad(texts)
    at = (keep.long().cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        return model(
            input_ids=tokens, attention_mask=keep.long(), position_ids=at, use_cache=False, output_attentions=True
        )


@pytest.mark.slow
@pytest.mark.parametrize(("family", "way"), CASES)
def test_probing_changes_no_bit(family: str, way: str) -> None:
    model = build(family, way)
    seen: list[int] = []
    before = plain(model, TEXTS).logits
    found = Pretrained(model, tokenizer(), "tiny").run(TEXTS, lambda reading: seen.append(reading.layer))
    assert seen == [0, 1]
    for row, ids in enumerate(TEXTS):
        assert torch.equal(found[row], before[row, -len(ids) :])
    assert model.config._attn_implementation == way, "the model is given back as it was"
    assert torch.equal(plain(model, TEXTS).logits, before)


@pytest.mark.parametrize(("family", "way"), CASES)
def test_the_weights_seen_are_the_models_own(family: str, way: str) -> None:
    """Against output_attentions of the eager model: grouped heads, windows, soft caps and left padding included."""
    window = {"sliding_window": 4} if family in ("mistral", "gemma2") else {}
    theirs = plain(build(family, "eager", **window), TEXTS).attentions
    weights: dict[tuple[int, int], Tensor] = {}
    seen: dict[tuple[int, int], Tensor] = {}

    def look(reading: Reading) -> None:
        for block in reading.blocks():
            weights[block.layer, block.text] = block.weights_HTS
            seen[block.layer, block.text] = block.seen_HTS

    Pretrained(build(family, way, **window), tokenizer(), "tiny").run(TEXTS, look)
    for (layer, text), found in weights.items():
        n = len(TEXTS[text])
        torch.testing.assert_close(found, theirs[layer][text, :, -n:, -n:], rtol=1e-4, atol=1e-5)
        assert int(seen[layer, text][0, -1].sum()) == (4 if window and (family, layer) != ("gemma2", 1) else n)
    assert len(weights) == 4


@pytest.mark.parametrize("family", FAMILIES)
def test_an_output_made_from_the_blocks_is_the_models_own(family: str) -> None:
    way = "eager" if family in EAGER_ONLY else "sdpa"
    model = build(family, way)
    before = plain(model, TEXTS).logits
    found = Pretrained(model, tokenizer(), "tiny").run(TEXTS, lambda r: r.output(lambda block: block.weights_HTS))
    for row, ids in enumerate(TEXTS):
        torch.testing.assert_close(found[row], before[row, -len(ids) :], rtol=1e-4, atol=1e-4)
    changed = Pretrained(model, tokenizer(), "tiny").run(TEXTS, lambda r: r.output(lambda block: 0 * block.weights_HTS))
    assert not torch.allclose(changed[0], found[0], atol=1e-2)


def test_eager_and_sdpa_agree_when_probed() -> None:
    found = [
        Pretrained(build("llama", way), tokenizer(), "tiny").run(TEXTS, lambda r: None) for way in ("eager", "sdpa")
    ]
    for eager, sdpa in zip(*found, strict=True):
        torch.testing.assert_close(eager, sdpa, rtol=1e-4, atol=1e-4)


def test_a_text_alone_and_beside_a_longer_one_is_the_same() -> None:
    subject = Pretrained(build("gpt2"), tokenizer(), "tiny")
    alone, beside = subject.run(TEXTS[1:], lambda r: None)[0], subject.run(TEXTS, lambda r: None)[1]
    torch.testing.assert_close(alone, beside, rtol=1e-4, atol=1e-4)


def test_what_a_probe_cannot_read_is_refused() -> None:
    model = build("llama")
    model.config._attn_implementation = "paged|eager"
    with refuses(r"'paged\|eager' makes no mask a probe could read"), probed(model, lambda r: None, (0,)):
        pass


def test_scores_with_something_added_are_refused() -> None:
    from keysift.hub.probe import _reading

    module = torch.nn.Linear(1, 1)
    with refuses("Linear adds s_aux to its scores, which the lens does not know"):
        _reading(module, *(torch.zeros(1, 1, 2, 2),) * 3, None, (0,), {"s_aux": torch.zeros(1)})
