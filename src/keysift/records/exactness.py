"""Record of the rounding errors of every backend, measured against the definition in fp64."""

from typing import Literal

from keysift.core.config import config
from keysift.core.provenance import Provenance


@config
class BackendError:
    """The tensor with the largest error of one mechanism on one backend, among the output and all gradients."""

    mechanism: str
    backend: str
    tensor: str
    error: float
    """Largest error, relative to the largest entry of the tensor."""
    plain: float
    """The same for plain torch in the same type."""
    agrees: bool
    """Every tensor is within the allowance: twice the error of plain torch, plus rounding."""


@config
class Exactness:
    """Errors of every mechanism on every backend that runs it, in fp32."""

    rows: tuple[BackendError, ...]
    made: Provenance
    format: Literal["keysift-exactness"] = "keysift-exactness"
    version: Literal[1] = 1

    @property
    def worst(self) -> BackendError:
        """The row with the largest error."""
        return max(self.rows, key=lambda row: row.error)

    @property
    def agrees(self) -> bool:
        return all(row.agrees for row in self.rows)
