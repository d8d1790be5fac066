"""What may differ between training and use, as one value that evaluation and generation share."""

from keysift.core.config import config
from keysift.core.errors import RangeError


@config
class Inference:
    """Choices made at inference; the default changes nothing."""

    expand_windows: bool | int = False
    """A head whose learned window is strictly longer than the training length looks back without end (SWE,
    arXiv:2604.01178v3); its rotation keeps the learned window. A number is that length, True takes the model's own."""
    rope_factor: float = 1.0
    """Divides every position before RoPE turns by it."""

    def __post_init__(self) -> None:
        if self.expand_windows is not False and not 1 <= self.expand_windows < 2**53:
            raise RangeError(
                f"expand_windows is the training length, 1 to 2**53 - 1, got {self.expand_windows}; "
                f"leave it False to keep every window"
            )
        if not 0 < self.rope_factor < float("inf"):
            raise RangeError(f"rope_factor must be a positive number, got {self.rope_factor}; 1.0 changes nothing")
