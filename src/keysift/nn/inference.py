"""Options that may differ between training and inference, shared by evaluation and generation."""

from typing import Literal, get_args

from keysift.core.config import config
from keysift.core.errors import RangeError
from keysift.nn.rope_scaling import NONE, parse_scaling, with_original

Search = Literal["auto", "scan", "sketch", "groups", "moments"]


@config
class Inference:
    """Inference options. The default runs the model as trained."""

    expand_windows: bool | int = False
    """Window expansion (SWE, arXiv:2604.01178v3): a head whose learned window is strictly longer than the training
    length gets an infinite window; its rotation keeps the learned one. A number gives the training length, True uses
    the model's own."""
    rope_factor: float = 1.0
    """Every position is divided by this factor before RoPE."""
    rope_scaling: str = NONE
    """Scaling of RoPE's frequencies: ntk:factor=4, ntk_by_parts:factor=4, yarn:factor=4, ... (nn/rope_scaling.py). The
    training length, `original`, is by default the model's own."""

    search: Search = "auto"
    """How a decoded token finds the keys that a screening tile with a long window accepts: scan every key, refuse keys
    by a bound, from 8-bit sketches or from groups of keys, or subtract the refused keys from sums over all (moments).
    All give the same result, moments up to rounding. auto estimates which is fastest. A forward pass without gradients
    uses groups or scans; both give the same result up to rounding."""

    def __post_init__(self) -> None:
        if self.expand_windows is not False and not 1 <= self.expand_windows < 2**53:
            raise RangeError(
                f"expand_windows is the training length, 1 to 2**53 - 1, got {self.expand_windows}; "
                f"leave it False to keep every window"
            )
        if not 0 < self.rope_factor < float("inf"):
            raise RangeError(f"rope_factor must be a positive number, got {self.rope_factor}; 1.0 changes nothing")
        if self.rope_scaling != NONE:  # torch.compile cannot follow the parser
            parse_scaling(with_original(self.rope_scaling, 1))
        if self.search not in get_args(Search):
            raise RangeError(f"search must be one of {', '.join(get_args(Search))}, got {self.search!r}")
