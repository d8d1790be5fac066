"""Activation patching between two prompts: exact effects, both kinds of models, the map as a page."""

import pytest
import torch
from torch import Tensor

from keysift.lens import patch
from keysift.lens.model import ignore_layer
from keysift.records.patching import PatchMap
from tests.lens.models import multiscreen, transformer
from tests.refusals import refuses

SOURCE, TARGET = "the cat sat on a", "the dog sat on a"


@pytest.fixture(scope="module")
def stream() -> PatchMap:
    return patch(transformer(), SOURCE, TARGET, answer="x", instead="y")


def test_effects_of_the_residual_stream(stream: PatchMap) -> None:
    """The last layer decides at the last position; before the words differ, both prompts have the same values."""
    assert stream.rows == ("layers.0.stream", "layers.1.stream")
    assert stream.columns == tuple(TARGET)
    assert stream.effects[1][-1] == pytest.approx(1, abs=1e-4)
    assert stream.effects[1][:-1] == pytest.approx([0] * 15, abs=1e-4)
    assert stream.effects[0][:4] == pytest.approx([0] * 4, abs=1e-4)
    assert max(abs(effect) for effect in stream.effects[0][4:7]) > 1e-3
    assert stream.strongest(1)[0][2] == max(max(row) for row in stream.effects)
    embedded = patch(transformer(), SOURCE, TARGET, answer="x", at="hook_embed").effects[0]
    assert [at for at, effect in enumerate(embedded) if abs(effect) > 1e-3] == [4, 5, 6], "cat and dog"


@pytest.mark.parametrize("model", [transformer(), multiscreen()], ids=lambda model: model.info.name)
def test_effect_of_a_head_equals_an_edit_by_hand(model: object) -> None:
    output = "output" if model.info.family == "transformer" else "screened"  # type: ignore[attr-defined]
    found = patch(model, SOURCE, TARGET, answer="x", at=f"layers.*.{output}")  # type: ignore[arg-type]
    assert len(found.rows) == 2
    assert found.columns[:3] == ("head 0", "head 1", "head 2")

    def answer(text: str) -> float:
        logits = model.run([model.encode(text)], ignore_layer)[0]  # type: ignore[attr-defined]
        return float(logits[-1].double().log_softmax(-1)[ord("x")])

    with model.trace(found.rows[1]) as seen:  # type: ignore[attr-defined]
        source = answer(SOURCE)
    target = answer(TARGET)

    def write(x: Tensor) -> Tensor:
        heads = torch.arange(x.shape[1])[:, None, None]
        return torch.where(heads == 2, seen[found.rows[1]], x)

    with model.edit({found.rows[1]: write}):  # type: ignore[attr-defined]
        patched = answer(TARGET)
    assert found.effects[1][2] == pytest.approx((patched - target) / (source - target), rel=1e-3, abs=1e-5)
    assert (found.source_value, found.target_value) == pytest.approx((source, target))


def test_invalid_patches_raise() -> None:
    model = transformer()
    for options, message in (
        ({"answer": ""}, "'' does not begin with a token of its own after the prompt"),
        ({"answer": "x", "instead": "xy"}, "'x' and 'xy' begin with the same token"),
        ({"answer": "x", "at": "layers.0.*"}, "matches values by position and by head"),
        ({"answer": "x", "at": "layers.9.stream"}, "no tap matches 'layers.9.stream'"),
    ):
        with refuses(message):
            patch(model, SOURCE, TARGET, **options)  # type: ignore[arg-type]
    with refuses("source has 16 and target 17"):
        patch(model, SOURCE, TARGET + "n", answer="x")
    with refuses("both prompts give the answer 'x' the same score"):
        patch(model, SOURCE, SOURCE, answer="x")


def test_page_of_a_patch_map(stream: PatchMap) -> None:
    html = stream.to_html()
    assert html.count("<rect") == 2 * 16
    assert "logit of &#x27;x&#x27; minus logit of &#x27;y&#x27;" in html
    assert f"{100 * stream.strongest(1)[0][2]:.0f}% of the way" in html
    hostile = PatchMap(**{**stream.__dict__, "columns": ("<img src=x>", *stream.columns[1:])})
    assert "<img" not in hostile.to_html()
    assert "&amp;lt;img" in hostile._repr_html_(), "escaped for the page, then for the attribute of the frame"
