"""From logits to one token a row. Filters apply in the order of the fields; what they leave is drawn from.

Letters: B batch, N vocabulary.
"""

import torch
from torch import Tensor

from keysift.core.config import config
from keysift.core.errors import RangeError


@config
class Sampling:
    """How the next token is chosen. The default takes the most likely one."""

    repetition_penalty: float = 1.0
    """Divides the positive and multiplies the negative logits of tokens that already occur in the row; 1 is off."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the most likely token and draws nothing."""
    top_k: int | None = None
    """Draw from the k most likely tokens."""
    top_p: float = 1.0
    """Draw from the fewest tokens that together have at least this probability."""
    min_p: float = 0.0
    """Draw from tokens at least this fraction as likely as the most likely one."""
    seed: int = 0
    """Row b draws from its own stream, seeded with seed + b: a row does not depend on its neighbours."""

    def __post_init__(self) -> None:
        if not self.repetition_penalty > 0:
            raise RangeError(f"repetition_penalty must be above 0, got {self.repetition_penalty}; 1 is off")
        if not self.temperature >= 0:
            raise RangeError(f"temperature must be at least 0, got {self.temperature}; 0 takes the most likely token")
        if self.top_k is not None and self.top_k < 1:
            raise RangeError(f"top_k must be at least 1, got {self.top_k}; leave it None to draw from all tokens")
        if not 0 < self.top_p <= 1:
            raise RangeError(f"top_p must lie in (0, 1], got {self.top_p}; 1 is off")
        if not 0 <= self.min_p <= 1:
            raise RangeError(f"min_p must lie in [0, 1], got {self.min_p}; 0 is off")
        if self.temperature == 0 and (self.top_k is not None or self.top_p < 1 or self.min_p > 0):
            raise RangeError(
                "top_k, top_p and min_p filter what is drawn from, and temperature 0 draws nothing; set it"
            )


def streams(sampling: Sampling, rows: int) -> list[torch.Generator]:
    """One source of randomness for each row."""
    return [torch.Generator().manual_seed(sampling.seed + row) for row in range(rows)]


def choose(logits_BN: Tensor, occurs_BN: Tensor, sampling: Sampling, generators: list[torch.Generator]) -> Tensor:
    """One token for each row, B. `occurs_BN` marks the tokens a row already has."""
    logits_BN = penalised(logits_BN.float(), occurs_BN, sampling.repetition_penalty)
    if sampling.temperature == 0:
        return logits_BN.argmax(-1)
    chances_BN = filtered(logits_BN / sampling.temperature, sampling).softmax(-1).cpu()
    drawn = [torch.multinomial(row, 1, generator=own) for row, own in zip(chances_BN, generators, strict=True)]
    return torch.cat(drawn).to(logits_BN.device)


def penalised(logits_BN: Tensor, occurs_BN: Tensor, penalty: float) -> Tensor:
    less_likely = torch.where(logits_BN > 0, logits_BN / penalty, logits_BN * penalty)
    return torch.where(occurs_BN, less_likely, logits_BN)


def filtered(logits_BN: Tensor, sampling: Sampling) -> Tensor:
    """Minus infinity for every token that may not be drawn; the most likely one always may."""
    if sampling.top_k is not None and sampling.top_k < logits_BN.shape[-1]:
        least = logits_BN.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits_BN = logits_BN.masked_fill(logits_BN < least, -torch.inf)
    if sampling.top_p < 1:
        sorted_BN, order_BN = logits_BN.sort(dim=-1, descending=True)
        chance_BN = sorted_BN.softmax(-1)
        # A token stays if the ones before it do not reach top_p, so the set just reaches it.
        beyond = chance_BN.cumsum(-1) - chance_BN >= sampling.top_p
        logits_BN = logits_BN.masked_fill(beyond.scatter(-1, order_BN, beyond), -torch.inf)
    if sampling.min_p > 0:
        chance_BN = logits_BN.softmax(-1)
        logits_BN = logits_BN.masked_fill(chance_BN < sampling.min_p * chance_BN.amax(-1, keepdim=True), -torch.inf)
    return logits_BN
