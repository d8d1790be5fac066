"""Losses of texts, losses by position and statistics of heads agree with direct computations on small cases."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from keysift.evaluate import loss
from keysift.evaluate.loss import measure_loss, nats_and_bits, token_losses
from keysift.evaluate.measured_model import MeasuredModel, describe
from keysift.evaluate.positions import loss_points, losses_by_position, middle_spans
from keysift.evaluate.scoring import TargetScores, score_targets
from keysift.evaluate.windows import head_statistics
from keysift.models.importing import import_model
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.inference import Inference
from keysift.nn.tap import trace
from tests.models import foreign
from tests.refusals import refuses

MODEL = Multiscreen(MultiscreenConfig.psi(3, vocab_size=20), torch.Generator().manual_seed(1)).eval()
TEXT = np.random.default_rng(0).integers(0, 20, 53)


def direct_losses(start: int, end: int) -> np.ndarray:
    """Loss in nats of the token after each position of [start, end), in one forward pass."""
    ids = torch.from_numpy(TEXT)
    with torch.no_grad():
        logits = MODEL(ids[None, start:end])[0]
    return F.cross_entropy(logits, ids[start + 1 : end + 1], reduction="none").numpy()


@pytest.mark.parametrize("stride", [1, 5, 16])
@pytest.mark.parametrize("batch_tokens", [16, 1000])
def test_every_token_is_scored_once_with_its_context(stride: int, batch_tokens: int) -> None:
    scored: list[int] = []
    losses = token_losses(MODEL, TEXT, context=16, stride=stride, batch_tokens=batch_tokens, on_tokens=scored.append)
    expected = np.zeros(52, np.float32)
    done = 0
    for start in range(0, 52, stride):
        end = min(start + 16, 52)
        if end > done:
            expected[done:end] = direct_losses(start, end)[done - start :]
            done = end
    np.testing.assert_allclose(losses, expected, atol=2e-5)
    assert scored[-1] == 52


def test_a_short_text_is_one_window_of_its_own_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training length of a model may be a hundred thousand tokens."""
    widths = []

    def score(model: Multiscreen, tokens: torch.Tensor, *rest: torch.Tensor, **options: Any) -> TargetScores:
        widths.append(tokens.shape[1])
        return score_targets(model, tokens, *rest, **options)

    monkeypatch.setattr(loss, "score_targets", score)
    np.testing.assert_allclose(token_losses(MODEL, TEXT, context=200), direct_losses(0, 52), atol=2e-5)
    assert widths == [52]


def test_the_loss_of_a_text_counts_no_begin_or_end_token(tmp_path: Path) -> None:
    """Begin and end tokens between documents are context only. The loss of one document equals that of its tokens."""
    imported = import_model(foreign.write(tmp_path / "theirs"), tmp_path / "ours")
    measured = MeasuredModel(imported.model, imported.tokenizer, describe(imported.model, "ours", step=None))
    for name, words in {"1.txt": "once upon a time", "2.txt": "there was"}.items():
        (tmp_path / name).write_text(words)

    def expected(ids: list[int], scored: list[int]) -> float:
        with torch.no_grad():
            logits = imported.model(torch.tensor([ids]))[0]
        nats = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
        return float(nats[torch.tensor(scored) - 1].mean())

    begin, end = 0, 1
    single = measure_loss(measured, str(tmp_path / "1.txt"), tokens=99)
    assert single.ids.tolist() == [2, 3, 4, 5]
    assert single.record.tokens == 4
    assert single.record.nats == pytest.approx(expected([begin, 2, 3, 4, 5], [1, 2, 3, 4]), rel=1e-5)
    both = measure_loss(measured, str(tmp_path / "*.txt"), tokens=99)
    ids = [begin, 2, 3, 4, 5, end, begin, 6, 7]
    assert both.ids.tolist() == [2, 3, 4, 5, 6, 7]
    assert both.record.nats == pytest.approx(expected(ids, [1, 2, 3, 4, 7, 8]), rel=1e-5)
    assert both.record.bits_per_byte == pytest.approx(both.losses.sum() / math.log(2) / both.record.bytes, rel=1e-5)


def test_bits_of_a_text() -> None:
    nats, bits = nats_and_bits(np.array([math.log(2), 3 * math.log(2)], np.float32), text_bytes=8)
    assert nats == pytest.approx(2 * math.log(2))
    assert bits == pytest.approx(0.5)


def test_loss_by_position_agrees_with_a_forward_pass() -> None:
    rows = middle_spans([TEXT, TEXT[:10]], 40)
    assert len(rows) == 1
    assert rows[0].tolist() == TEXT[6:47].tolist()
    losses = losses_by_position(MODEL, rows, settings={"as trained": Inference()})["as trained"]
    np.testing.assert_allclose(losses[0], direct_losses(6, 46), atol=2e-5)
    at_20, at_40 = loss_points({"as trained": losses}, (20, 40))
    assert at_20.nats == pytest.approx(losses[0, 17:22].mean(), abs=1e-6)
    assert at_40.nats == pytest.approx(losses[0, 35:40].mean(), abs=1e-6)
    assert at_20.error == 0.0


def test_standard_error_is_over_documents() -> None:
    losses = np.array([[1.0, 1.0], [3.0, 3.0]], np.float32)
    (point,) = loss_points({"a": losses}, (1,))
    assert (point.nats, point.documents) == (2.0, 2)
    assert point.error == pytest.approx(1.0)


def test_settings_give_different_losses() -> None:
    model = Multiscreen(MultiscreenConfig(vocab_size=20, depth=2, tiles=2, width=8)).eval()
    settings = {"as trained": Inference(), "windows expanded": Inference(expand_windows=4)}
    with torch.no_grad():
        for layer in model.layers:
            layer.tiles.scalars.s_w.fill_(2.0)
            layer.tiles.scalars.s_r.fill_(4.0)
            layer.tiles.s_O.fill_(2.0)
    losses = losses_by_position(model, [TEXT], settings=settings)
    assert not np.allclose(losses["as trained"], losses["windows expanded"])


def test_head_statistics_agree_with_the_weights() -> None:
    tokens = torch.from_numpy(TEXT)[None]
    with trace(MODEL, "layers.1.tiles.relevance") as traced, torch.no_grad():
        MODEL(tokens)
    weights = traced["layers.1.tiles.relevance"][0, 2]
    head_record = next(head for head in head_statistics(MODEL, tokens) if (head.layer, head.head) == (1, 2))
    assert head_record.window == pytest.approx(257, rel=1e-5)
    assert head_record.acceptance == pytest.approx(0.5)
    assert head_record.accepted == pytest.approx((weights != 0).sum().item() / (53 * 54 / 2))
    assert head_record.nothing == pytest.approx((weights == 0).all(-1).float().mean().item())
    assert head_record.mass == pytest.approx(weights.sum(-1).mean().item(), rel=1e-5)


def test_heads_of_a_transformer_have_no_window() -> None:
    model = Transformer(TransformerConfig(vocab_size=20, depth=1, heads=2, width=8)).eval()
    first = head_statistics(model, torch.from_numpy(TEXT)[None])[0]
    assert (first.window, first.acceptance) == (None, None)
    assert first.accepted == pytest.approx(1.0)
    assert first.mass == pytest.approx(1.0, abs=1e-5)


def test_refusals() -> None:
    with refuses("stride must lie between 1 and the context of 8"):
        token_losses(MODEL, TEXT, context=8, stride=9)
    with refuses("at least 2 tokens"):
        token_losses(MODEL, TEXT[:1], context=8)
    with refuses("no document has the 101 tokens"):
        middle_spans([TEXT], 100)
