"""Sampling settings for generation; sampler.py applies them. Torch-free, so that the command line starts fast."""

from math import inf

from keysift.core.config import config
from keysift.core.errors import RangeError

SEEDS = 2**64


@config
class Sampling:
    """Settings for sampling the next token. The default is greedy. Filters apply in the order of the fields."""

    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens that already occur in the row; 1 is off."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int | None = None
    """Sample from the k most likely tokens."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens whose probabilities sum to at least this number."""
    min_p: float = 0.0
    """Sample from tokens at least this fraction as likely as the most likely token."""
    seed: int = 0
    """The same seed gives the same text. Prompts that share these settings use seed, seed + 1, ..."""

    def __post_init__(self) -> None:
        if not 0 < self.repetition_penalty < inf:
            raise RangeError(f"repetition_penalty must be a number above 0, got {self.repetition_penalty}; 1 is off")
        if not 0 <= self.temperature < inf:
            raise RangeError(f"temperature must be at least 0, got {self.temperature}; 0 takes the most likely token")
        if self.top_k is not None and self.top_k < 1:
            raise RangeError(f"top_k must be at least 1, got {self.top_k}; leave it None to sample from all tokens")
        if not 0 < self.top_p <= 1:
            raise RangeError(f"top_p must lie in (0, 1], got {self.top_p}; 1 is off")
        if not 0 <= self.min_p <= 1:
            raise RangeError(f"min_p must lie in [0, 1], got {self.min_p}; 0 is off")
        if not 0 <= self.seed < SEEDS:
            raise RangeError(f"seed must lie in 0 to 2**64 - 1, got {self.seed}")
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1 or self.min_p > 0):
            raise RangeError(
                "top_k, top_p and min_p need a temperature above 0, got temperature 0, which takes the most likely "
                "token; set temperature"
            )
