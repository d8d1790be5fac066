"""The verdict on a claim, and the comparison of two samples that most rules end in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evidence.claims.groups import SeedGroup, SeedSample
from evidence.claims.paired import MOST_SEEDS, Comparison, Word
from evidence.study import Claim

PAIRED = "differ in a paired t-test over seeds at the 5% level, with at least three seeds"


@dataclass(frozen=True)
class Verdict:
    """`why` gives the numbers in a sentence; `effect` and `n` are the cells of the table of claims."""

    claim: Claim
    word: Word
    why: str
    effect: str = ""
    n: str = ""
    comparison: Comparison | None = None

    @property
    def text(self) -> str:
        """The word, with the number of seeds that would decide where it is known."""
        if self.word != "underpowered" or self.comparison is None:
            return self.word
        needed = self.comparison.seeds_needed
        return f"underpowered (n needed: {f'over {MOST_SEEDS}' if needed is None else needed})"


@dataclass(frozen=True)
class Rule:
    statement: str
    decide: Callable[[Claim, Sequence[SeedGroup]], Verdict]


def missing(claim: Claim, what: str) -> Verdict:
    return Verdict(claim, "no records", f"no record of {what} yet")


def compare(claim: Claim, high: SeedSample, low: SeedSample, why: str, effect: str) -> Verdict:
    """The verdict on a positive difference `high - low`. `{}` in `effect` stands for the difference as text."""
    comparison = Comparison(high.minus(low), claim.margin)
    if not comparison.n:
        return missing(claim, "a seed that both models have")
    word = comparison.word(comparison.p)
    return Verdict(claim, word, why, effect.format(comparison.interval), str(comparison.n), comparison)
