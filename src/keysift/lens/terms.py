"""Every diagnostic by name: what it is called, what it means, and where the definition comes from. No torch.

published      as a paper states it
reconstructed  from a paper's prose and proofs, where its display formulas could not be had; checked numerically
ours           defined here
"""

import re
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    title: str
    meaning: str
    origin: str = "ours"


_PUBLISHED, _RECONSTRUCTED = "published", "reconstructed"

# A name that ends in _N, _T_E or _without_first is found under what stands before it.
TERMS = {
    "entropy": Term("entropy", "of a row's weights as a distribution, in nats", _PUBLISHED),
    "entropy_share": Term("entropy share", "entropy / log n: 1 is a plain average over n visible keys", _PUBLISHED),
    "effective_keys": Term("effective keys", "exp(entropy): over how many keys a row spreads"),
    "effective_share": Term("effective share", "effective keys / n"),
    "participation": Term("participation", "1 / sum of squared weights: another count of keys, led by the large ones"),
    "largest_weight": Term("largest weight", "of a row, as a share of its mass"),
    "times_uniform": Term("times uniform", "n times the largest weight: 1 is a plain average"),
    "first_mass": Term("sink mass", "share of the mass on the first key", _PUBLISHED),
    "own_mass": Term("own mass", "share of the mass on the query's own key"),
    "previous_mass": Term("previous mass", "share of the mass on the key before the query"),
    "row_mass": Term("row mass", "sum of the weights: 1 for softmax; a mechanism that can refuse may have any"),
    "spread": Term("spread", "largest minus smallest score of a row"),
    "required_spread": Term("required spread", "log(n - 1): what it takes to give one key half of the mass"),
    "can_focus": Term("can focus", "share of rows whose spread is at least the required one"),
    "reach": Term(
        "reach", "1 + exp(spread) at the longest contexts seen: visible keys beyond which no key can get half"
    ),
    "focus_until": Term(
        "focus until",
        "visible keys from which no key can get half, if the spread grows on as fitted; none: it keeps up",
    ),
    "spread_slope": Term("spread slope", "growth of the spread with log n; below 1 a head loses focus in the long run"),
    "fading_exponent": Term("fading exponent", "b in largest weight ~ n^-b: 1 is full dispersion, 0 none"),
    "retained": Term("retained mass", "share of the mass on the N heaviest keys", _PUBLISHED),
    "keys_for_mass": Term("keys for 90%", "share of visible keys that holds 90% of the mass"),
    "keys_for_mass_gaussian": Term(
        "keys for 90%, Gaussian", "what scores of the same deviation would need were they Gaussian", _PUBLISHED
    ),
    "score_deviation": Term("score deviation", "standard deviation of a row's scores"),
    "accepted": Term("accepted", "keys with a weight that is not zero"),
    "accepted_share": Term("accepted share", "of visible keys"),
    "refuses_all": Term("refuses all", "share of rows that accept no key"),
    "threshold_distance": Term("distance to threshold", "mean score minus the score from which keys are accepted"),
    "threshold_margin": Term("threshold margin", "best score of a row minus the threshold"),
    "recall": Term(
        "separability", "share of the N heaviest keys nearer to their sum than any other key", _RECONSTRUCTED
    ),
    "recall_lower": Term("separability, lower bound", "Theorem 2; holds row by row, mostly 0", _RECONSTRUCTED),
    "recall_upper": Term("separability, upper side", "Theorem 2 as published; not a bound", _RECONSTRUCTED),
    "precision": Term("precision", "N / (N + keys as near as the farthest of the N)", _PUBLISHED),
    "f": Term("F", "harmonic mean of precision and separability", _PUBLISHED),
    "cosine_recall": Term("separability, cosine", "the same with cosine distance", _PUBLISHED),
    "cosine_f": Term("F, cosine", "the same with cosine distance", _PUBLISHED),
    "recall_of_shuffled_values": Term("null: shuffled values", "separability with the values permuted"),
    "recall_of_random_sets": Term("null: random sets", "separability of N random keys"),
    "distance": Term("distance", "sum over the others of |alpha x - s|, s the sum over the N heaviest", _RECONSTRUCTED),
    "distance_bound": Term(
        "distance bound", "Theorem 1 in its linear form; the square-root form fails", _RECONSTRUCTED
    ),
    "distance_tightness": Term("tightness", "distance / bound", _RECONSTRUCTED),
    "distance_share": Term("distance share", "distance / ((n - N) |output|): 1, the N keys carry all of the output"),
    "distance_random": Term("distance, random set", "the same for N random keys"),
    "distance_expected_subset": Term(
        "expected, random set", "Theorem 1's main term of its expectation", _RECONSTRUCTED
    ),
    "distance_expected_output": Term("expected, full output", "that term with the full output in place of the set's"),
    "jacobian": Term("Jacobian", "largest eigenvalue of diag(a) - a a^T, at most 1/2 (the published 1/4 fails)"),
    "saturated": Term("saturated", "share of rows with a Jacobian below 0.01"),
    "gradient": Term("gradient", "|change of weights| / step at temperature T and step E", _PUBLISHED),
    "gradient_tightness": Term("gradient tightness", "largest gradient / min(1/(2T), sqrt 2 / E) over all T and E"),
    "gradient_above_published": Term(
        "gradient above published", "share of rows with a gradient above min(1/(4T), sqrt 2)"
    ),
    "entropy_floor": Term("entropy floor", "the least entropy that scores as far from their mean allow", _PUBLISHED),
    "entropy_floor_share": Term("entropy floor share", "floor / entropy: 1 is as sharp as these scores allow"),
    "left_out_moved": Term("moved by leaving", "sum of the changes of other weights when the brightest key leaves"),
    "left_out_gain": Term("gain by leaving", "the same relative to the weight the others had"),
    "left_out_output": Term("output by leaving", "relative change of the head's output when the brightest key leaves"),
    "brightest_weight": Term("brightest weight", "largest share of the mass on a key that is not the first"),
    "brightest_percentile": Term("absolute percentile", "of its score among this head's scores on unrelated text"),
    "brightest_among_best": Term("among the best", "of its score among the best scores of unrelated rows"),
    "bright": Term("bright rows", "share of rows with a key of 30% of the mass or more, the first key aside"),
    "only_relatively_bright": Term(
        "only relatively bright", "share of bright keys below the median best unrelated one"
    ),
}


def term(name: str) -> Term:
    """Of any diagnostic in a record: "recall_8", "gradient_0.1_0.001", "entropy_without_first"."""
    base, suffix = name, ""
    if name.endswith("_without_first"):
        base, suffix = name.removesuffix("_without_first"), ", first key aside"
    elif name not in TERMS:
        base = re.sub(r"(_[\d.]+)+$", "", name)
        numbers = name[len(base) + 1 :].split("_")
        suffix = f", N = {numbers[0]}" if len(numbers) == 1 else f", T = {numbers[0]}, step {numbers[1]}"
    found = TERMS[base]
    return Term(found.title + suffix, found.meaning, found.origin)


def markdown() -> str:
    """The table of docs/lens.md."""
    rows = (f"| `{name}` | {known.meaning} | {known.origin} |" for name, known in TERMS.items())
    return "\n".join(("| name | meaning | origin |", "| --- | --- | --- |", *rows))


if __name__ == "__main__":
    sys.stdout.write(markdown() + "\n")
