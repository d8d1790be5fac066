"""What may differ between training and use, as one value that evaluation and generation share."""

from keysift.core.config import config
from keysift.core.errors import RangeError


@config
class Inference:
    """Choices made at inference; the default changes nothing.

    expand_windows_beyond   a head whose learned window is strictly greater than this (the training length) looks back
                            without end (SWE, arXiv:2604.01178v3); its rotation keeps the learned window
    rope_factor             divides every position before RoPE turns by it
    """

    expand_windows_beyond: int | None = None
    rope_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.expand_windows_beyond is not None and self.expand_windows_beyond < 1:
            raise RangeError(
                f"expand_windows_beyond is the training length, at least 1, got {self.expand_windows_beyond}; "
                f"leave it None to keep every window"
            )
        if not 0 < self.rope_factor < float("inf"):
            raise RangeError(f"rope_factor must be a positive number, got {self.rope_factor}; 1.0 changes nothing")
