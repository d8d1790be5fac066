"""Every mechanism x every promise: no input tried breaks what is promised; what is not promised is refuted."""

import pytest
import torch

from keysift.evaluate.promises import judge
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism, Promise
from tests.representatives import few_at_once

WRAPPED = ["screening+value_gate", "screening+output_gate", "differential_v1+value_gate", "relu+output_head_gate"]
ALL = [*MECHANISMS, *map(find, WRAPPED)]


# Rounding decides nothing new for most pairs: `make check` tries fp64, `make test` both.
DTYPES = [pytest.param(torch.float64, id="fp64"), pytest.param(torch.float32, id="fp32", marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("promise", list(Promise), ids=lambda promise: promise.name)
@pytest.mark.parametrize("mechanism", few_at_once(ALL))
def test_kept_or_refuted(mechanism: Mechanism, promise: Promise, dtype: torch.dtype) -> None:
    verdict = judge(mechanism, promise, dtype)
    assert verdict.kept == (promise in mechanism.holds), verdict.example
