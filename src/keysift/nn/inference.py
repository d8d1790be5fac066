"""Options that may differ between training and inference, shared by evaluation and generation."""

from keysift.core.config import config
from keysift.core.errors import RangeError


@config
class Inference:
    """Inference options. The default runs the model as trained."""

    expand_windows: bool | int = False
    """Window expansion (SWE, arXiv:2604.01178v3): a head whose learned window is strictly longer than the training
    length gets an infinite window; its rotation keeps the learned one. A number gives the training length, True uses
    the model's own."""
    rope_factor: float = 1.0
    """Every position is divided by this factor before RoPE."""

    def __post_init__(self) -> None:
        if self.expand_windows is not False and not 1 <= self.expand_windows < 2**53:
            raise RangeError(
                f"expand_windows is the training length, 1 to 2**53 - 1, got {self.expand_windows}; "
                f"leave it False to keep every window"
            )
        if not 0 < self.rope_factor < float("inf"):
            raise RangeError(f"rope_factor must be a positive number, got {self.rope_factor}; 1.0 changes nothing")
