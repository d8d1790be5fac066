"""selective_mask against numbers of its definition, and the mistakes of public implementations."""

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import attend
from keysift.kernels.selective_mask import selective_mask
from tests.refusals import refuses

ROWS = [[1.0, 0, 0, 0], [0.5, 2, 0, 0], [-1, 1.5, 0.25, 0], [2, 1, 0.5, -1]]


def fixture() -> tuple[Tensor, Tensor]:
    """Queries whose scores with the keys are ROWS; the last row has them in head 0 too."""
    q = torch.tensor(ROWS, dtype=torch.float64)[None, None]
    return q, torch.eye(4, dtype=torch.float64)[None, None]


def test_numbers_of_the_definition() -> None:
    q, k = fixture()
    bias = selective_mask(q, k, scale=1.0)
    assert bias[0, 0, 3].tolist() == [0, -1.5, 0, 0], "rows 0 to 2, without the first key and the own keys"
    _, weights = attend("softmax", q, k, k, scale=1.0, bias=bias, return_weights=True)
    expected = [0.738006, 0.060579, 0.164671, 0.036743]
    assert weights[0, 0, 3].tolist() == pytest.approx(expected, abs=6e-7)
    own_row_counted = [0.822829, 0.024847, 0.111358, 0.040966]
    assert weights[0, 0, 3].tolist() != pytest.approx(own_row_counted, abs=1e-3)


def test_every_head_gets_the_mask_of_head_0_and_a_later_token_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, heads, 9, 4, generator=generator, dtype=torch.float64) for heads in (4, 2))
    bias = selective_mask(q, k)
    expected = torch.zeros(9)
    for row in range(8):
        for key in range(1, row):
            expected[key] += max(0.0, float(q[1, 0, row] @ k[1, 0, key]) / 2)
    torch.testing.assert_close(bias[1, 0, 8], -expected.double())
    torch.testing.assert_close(selective_mask(q[:, :, :7], k[:, :, :7]), bias[:, :, :7, :7])
    v = torch.randn(2, 2, 9, 3, generator=generator, dtype=torch.float64)
    longer = attend("softmax", q, k, v, bias=bias)
    shorter = attend("softmax", q[:, :, :7], k[:, :, :7], v[:, :, :7], bias=selective_mask(q[:, :, :7], k[:, :, :7]))
    torch.testing.assert_close(longer[:, :, :7], shorter)


def test_gradients_reach_head_0() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 6, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3))

    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend("softmax", q, k, v, bias=selective_mask(q, k))

    assert torch.autograd.gradcheck(layer, (q, k, v))
    (through_mask,) = torch.autograd.grad(selective_mask(q, k).sum(), q)
    assert float(through_mask[:, 0].abs().max()) > 0
    assert float(through_mask[:, 1].abs().max()) == 0


def test_a_cached_step_is_refused() -> None:
    """A public implementation returns plain softmax for one query and four keys."""
    q, k = fixture()
    with refuses("got 1 queries for 4 keys; pass the queries and keys of the whole text"):
        selective_mask(q[:, :, 3:], k)
    assert selective_mask(q[:, :, :2].bfloat16(), k[:, :, :2].bfloat16()).dtype == torch.float32
