"""Check every promise of every mechanism: stated promises are confirmed, all others are refuted."""

import pytest
import torch

from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism, Promise
from keysift.verify.promises import check_promise
from tests.representatives import slow_unless_representative

WRAPPED = ["screening+value_gate", "screening+output_gate", "differential_v1+value_gate", "relu+output_head_gate"]
ALL = [*MECHANISMS, *map(find, WRAPPED)]


# Rounding decides nothing new for most pairs: `make check` tries fp64, `make test` both.
DTYPES = [pytest.param(torch.float64, id="fp64"), pytest.param(torch.float32, id="fp32", marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("promise", list(Promise), ids=lambda promise: promise.name)
@pytest.mark.parametrize("mechanism", slow_unless_representative(ALL))
def test_promise_is_kept_or_refuted(mechanism: Mechanism, promise: Promise, dtype: torch.dtype) -> None:
    verdict = check_promise(mechanism, promise, dtype)
    assert verdict.kept == (promise in mechanism.holds), verdict.example
