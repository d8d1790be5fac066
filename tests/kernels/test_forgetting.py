"""Forget gates on sdpa agree with the definition, gradients included, and lose no digits in a long text."""

import pytest
import torch

from keysift.kernels.attend import attend, explain
from keysift.kernels.eager import forgetting
from keysift.kernels.positions import Positions
from keysift.kernels.weigh import weigh
from keysift.mechanisms import find
from keysift.mechanisms.spec import Per
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.verify.agreement import check_agreement, draw_inputs
from keysift.verify.cache_equality import check_cache
from tests.kernels.checks import agrees, check_compiles, largest_saved
from tests.refusals import refuses

FOX = find("forgetting")


def test_golden_weights() -> None:
    """Gates 0.9, 0.8, 0.5, 0.6: the products are over the keys after j up to the query."""
    x = torch.tensor([2.0, 1.0, 0.5, -1.0], dtype=torch.float64)
    q, k = torch.ones(1, 1, 1, 1, dtype=torch.float64), x.view(1, 1, 4, 1)
    gates = torch.tensor([0.9, 0.8, 0.5, 0.6], dtype=torch.float64).log().view(1, 1, 4)
    w = attend("forgetting", q, k, k, scale=1.0, scalars={"log_forget": gates}, return_weights=True)[1]
    assert w.flatten().tolist() == pytest.approx([0.449414, 0.206663, 0.250694, 0.093229], abs=6e-7)
    half = weigh("forgetting", x, scalars={"log_forget": torch.tensor(0.5).log()})
    assert half.tolist() == pytest.approx([0.330406, 0.243099, 0.294895, 0.131600], abs=6e-7)


@pytest.mark.parametrize("level", [1e-3, 1.0, 30.0])
def test_blocks_and_positions(level: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates from nearly open to closed, so that blocks have every size and keys vanish."""
    monkeypatch.setattr(forgetting, "BLOCKS", (64, 16, 8))

    def check(t: int, s: int, **options: object) -> None:
        draws = [draw_inputs(FOX, t, s, seed=seed) for seed in range(2)]
        for tensors in draws:
            tensors["log_forget"] = tensors["log_forget"] * level
        check_agreement(FOX, *draws, backend="sdpa", **options)

    for t, s in ((70, 70), (1, 40), (5, 40), (40, 20)):
        check(t, s)
    check(60, 60, positions=Positions.packed([[3, 50, 7], [40]], 60))
    check(20, 20, positions=Positions.padded([20, 3], 20))
    check(60, 60, window=9)
    check(60, 60, window=20, positions=Positions.packed([[3, 50, 7], [60]]))


def test_a_gate_belongs_to_a_query_head() -> None:
    """Also where query heads share a key head: closing the gates of one head changes no other head."""
    assert FOX.scalar("log_forget").per is Per.HEAD_KEY
    q, k, v = torch.randn(1, 4, 20, 4), torch.randn(1, 2, 20, 4), torch.randn(1, 2, 20, 4)
    gates = torch.full((1, 4, 20), -0.1)
    before = attend("forgetting", q, k, v, scalars={"log_forget": gates})
    gates[:, 1] = -50.0
    after = attend("forgetting", q, k, v, scalars={"log_forget": gates})
    torch.testing.assert_close(after[:, [0, 2, 3]], before[:, [0, 2, 3]])
    torch.testing.assert_close(after[:, 1], v[:, 0])


@torch.no_grad()
def test_a_long_text_loses_no_digits() -> None:
    """After 4,000 tokens the sum of the logarithms is -800, where fp32 rounds to 6e-5."""
    q, k, v = (torch.randn(1, 1, 4000, 8) for _ in range(3))
    gates = torch.full((1, 1, 4000), -0.2)
    actual = attend("forgetting", q, k, v, scalars={"log_forget": gates})[:, :, -50:]
    last = [x[:, :, -600:].double() for x in (q, k, v)]
    expected = attend("forgetting", *last, scalars={"log_forget": gates[:, :, -600:].double()})[:, :, -50:]
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=5e-6)


def test_keys_that_have_vanished_are_not_read() -> None:
    q = torch.randn(1, 2, 2000, 4)
    gates = torch.full((1, 2, 2000), -1.0, dtype=torch.float64)
    inputs = forgetting.Inputs(q, q, q, gates.cumsum(-1), None, 0, 0, 0.5)
    pairs = sum(region.shape[0] * region.shape[1] for block in forgetting._blocks(inputs) for region in block.regions)
    assert pairs < 2000 * 600


def test_backends() -> None:
    q = torch.randn(1, 1, 8, 4)
    assert explain("forgetting", q, q, q).backend == "sdpa"
    for options in ({"keep": torch.ones(8, 8, dtype=torch.bool)}, {"window": 3, "kept": 1}, {"slopes": torch.ones(1)}):
        choice = explain("forgetting", q, q, q, **options)  # type: ignore[arg-type]
        assert choice.declined["sdpa"].startswith("forget gates need every key between a key and its query")
    agrees("by_rows", FOX, 20, 20, window=3, kept=2)
    agrees("by_rows", FOX, 20, 20, keep=torch.rand(20, 20) < 0.7)
    with refuses("log_forget needs .* <= 0, got 1|needs log_forget > -inf and <= 0, got 1"):
        attend("forgetting", q, q, q, scalars={"log_forget": 1.0})
    leaf = torch.randn(1, 1, 640, 4, requires_grad=True)
    assert largest_saved(lambda: attend("forgetting", leaf, leaf, leaf)) <= 640 * 4


@pytest.mark.parametrize("options", [{}, {"window": 6}, {"window": 6, "kept": 2}], ids=str)
def test_caches(options: dict[str, int]) -> None:
    """Gates are cached per query head, two of which share a key head."""
    config = TransformerConfig(
        vocab_size=11, depth=2, width=16, heads=4, key_heads=2, mechanism="forgetting", position="none", **options
    )
    model = Transformer(config, torch.Generator().manual_seed(0)).eval()
    check_cache(model, (17, 3, 1, 1, 5))
    cache = model.cache(2)
    model(torch.zeros(2, 5, dtype=torch.int64), cache=cache)
    assert cache.layers[0].entries["log_forget"].shape[2] == 2
    assert cache.layers[0].entries["log_forget"].dtype == torch.float32


@pytest.mark.slow
def test_operators_pass_opcheck_and_compile() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    decay = torch.full((1, 2, 6), -0.5, dtype=torch.float64).cumsum(-1).requires_grad_()
    torch.library.opcheck(forgetting._forgetting, (q, k, v, decay, None, 0, 0, 0.5))
    check_compiles("forgetting", "sdpa")
