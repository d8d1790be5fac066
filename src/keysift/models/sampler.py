"""Sample the next token of each row from its logits, with separate settings per row.

All computation is in float64 on the CPU, after subtracting the largest logit, so that extreme settings (a temperature
of 1e-40, a top_p of 1e-300) keep their exact meaning.

Letters: B batch, N vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from keysift.core.errors import RangeError
from keysift.models.sampling_settings import Sampling


class Sampler:
    """Sampling settings of B rows as columns B 1, and a random generator for each row."""

    def __init__(self, samplings: Sequence[Sampling]) -> None:
        self._rows = list(samplings)
        self._generators = [torch.Generator().manual_seed(row.seed) for row in samplings]
        self._columns()

    def _columns(self) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64)[:, None]

        self.penalty = column([row.repetition_penalty for row in self._rows])
        self.temperature = column([row.temperature for row in self._rows])
        self.top_p = column([row.top_p for row in self._rows])
        self.min_p = column([row.min_p for row in self._rows])
        self.top_k = [row.top_k for row in self._rows]
        # Which steps any row needs, decided here: each would cost a tenth of a small model's token.
        self.penalises = any(row.repetition_penalty != 1 for row in self._rows)
        self._greedy = all(row.temperature == 0 for row in self._rows)
        self._filters = any(row.top_k is not None or row.top_p < 1 or row.min_p > 0 for row in self._rows)

    def select(self, rows: list[int]) -> None:
        """Keep these rows, in this order."""
        self._rows = [self._rows[row] for row in rows]
        self._generators = [self._generators[row] for row in rows]
        self._columns()

    def choose(self, logits_BN: Tensor, occurs_BN: Tensor) -> Tensor:
        """One token per row, B. `occurs_BN` marks the tokens that already occur in a row, where a row is penalised."""
        logits_BN = logits_BN.cpu().double()
        if self.penalises:
            logits_BN = penalised(logits_BN, occurs_BN.cpu(), self.penalty)
        top_B1, best_B1 = logits_BN.max(-1, keepdim=True)
        if not all(math.isfinite(top) for (top,) in top_B1.tolist()):
            raise RangeError("the model's logits are not finite, so no token can be chosen; are its weights damaged?")
        if self._greedy:
            return best_B1[:, 0]
        heat_B1 = torch.where(self.temperature == 0, 1.0, self.temperature)
        logits_BN = (logits_BN - top_B1) / heat_B1
        chances_BN = (self.filtered(logits_BN) if self._filters else logits_BN).softmax(-1)
        # A greedy row uses no random numbers.
        tokens = [
            best if settings.temperature == 0 else torch.multinomial(row, 1, generator=own)
            for row, best, settings, own in zip(chances_BN, best_B1, self._rows, self._generators, strict=True)
        ]
        return torch.cat(tokens)

    def filtered(self, logits_BN: Tensor) -> Tensor:
        """Set the logits of excluded tokens to minus infinity. The most likely token is never excluded."""
        n = logits_BN.shape[-1]
        if any(k is not None and k < n for k in self.top_k):
            last_B1 = torch.tensor([min(k or n, n) - 1 for k in self.top_k])[:, None]
            least_B1 = logits_BN.sort(dim=-1, descending=True).values.gather(1, last_B1)
            logits_BN = logits_BN.masked_fill(logits_BN < least_B1, -torch.inf)
        if bool((self.top_p < 1).any()):
            sorted_BN, order_BN = logits_BN.sort(dim=-1, descending=True)
            chance_BN = sorted_BN.softmax(-1)
            # A token stays if the tokens before it sum to less than top_p, so the kept set just reaches top_p.
            beyond = (chance_BN.cumsum(-1) - chance_BN >= self.top_p) & (self.top_p < 1)
            beyond[:, 0] = False
            logits_BN = logits_BN.masked_fill(beyond.scatter(-1, order_BN, beyond), -torch.inf)
        if bool((self.min_p > 0).any()):
            chance_BN = logits_BN.softmax(-1)
            least_B1 = self.min_p * chance_BN.amax(-1, keepdim=True)
            logits_BN = logits_BN.masked_fill(chance_BN < least_B1, -torch.inf)
        return logits_BN


def penalised(logits_BN: Tensor, occurs_BN: Tensor, penalty_B1: Tensor) -> Tensor:
    """Logits with the repetition penalty applied to tokens that occur."""
    less_likely = torch.where(logits_BN > 0, logits_BN / penalty_B1, logits_BN * penalty_B1)
    return torch.where(occurs_BN, less_likely, logits_BN)
