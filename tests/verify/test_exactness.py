"""The rounding errors of `keysift check`: a backend with a wrong gradient is reported."""

from dataclasses import replace

import pytest
from torch import Tensor

from keysift.kernels.attend import BACKENDS
from keysift.kernels.call import Call
from keysift.mechanisms.softmax import SOFTMAX
from keysift.verify import exactness


def test_every_backend_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "MECHANISMS", [SOFTMAX])
    record = exactness.measure_exactness("keysift check")
    assert {row.backend for row in record.rows} == {"sdpa", "by_rows"}
    assert record.agrees
    assert 0 < record.worst.error < 1e-5


def test_a_wrong_gradient_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = BACKENDS.find("by_rows")

    def run(call: Call) -> tuple[Tensor, Tensor | None]:
        out, weights = rows.run(call)
        return out + 1e-3 * (call.q.sum() - call.q.sum().detach()), weights

    wrong = replace(rows, run=run)
    monkeypatch.setattr(exactness, "MECHANISMS", [SOFTMAX])
    monkeypatch.setitem(BACKENDS._items, "by_rows", wrong)
    record = exactness.measure_exactness("keysift check")
    (row,) = (row for row in record.rows if row.backend == "by_rows")
    assert not record.agrees
    assert not row.agrees
    assert row.tensor.startswith("gradient of q")
