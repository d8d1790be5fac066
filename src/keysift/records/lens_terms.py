"""Table of every diagnostic in a lens record: title, meaning, origin, and where tables show it. No torch.

published      as a paper states it
reconstructed  from a paper's prose and proofs, because its display formulas were not available; checked numerically
ours           defined here

The order of the table is the order in pages, terminal tables and docs/lens-reference.md.
"""

import re
import sys
from dataclasses import dataclass, replace

from keysift.core.markdown import table_head, table_row

PUBLISHED, RECONSTRUCTED, OURS = "published", "reconstructed", "ours"


@dataclass(frozen=True)
class Term:
    """One diagnostic. A row holds the attention weights of one query; its mass is the sum of their absolute values."""

    title: str
    meaning: str
    origin: str = OURS
    column: str | None = None  # heading in the terminal's table of heads; None: not a column
    compared: bool = False  # a row of the tables that compare models
    table_n: int | None = None  # tables show a diagnostic of the N largest weights at this N
    excerpt: bool = False  # kept when a record is reduced to an excerpt; rows of comparisons are kept too
    excerpt_by_length: bool = False  # kept there for each context length too


# Names ending in _N, _T_E or _without_first are listed under the part before it.
TERMS = {
    "effective_keys": Term(
        "effective keys",
        "exp(entropy): the number of keys a row spreads over",
        column="keys",
        compared=True,
        excerpt=True,
    ),
    "effective_share": Term("effective share", "effective keys / n, for n visible keys", compared=True),
    "entropy": Term("entropy", "entropy of a row's weights, in nats", PUBLISHED),
    "entropy_share": Term("entropy share", "entropy / log n; 1 is a plain average over the n visible keys", PUBLISHED),
    "participation": Term(
        "participation", "1 / sum of squared weights: a count of keys that favours the large weights"
    ),
    "largest_weight": Term(
        "largest weight",
        "largest weight of a row, as a share of its mass",
        column="largest",
        compared=True,
        excerpt=True,
    ),
    "times_uniform": Term("times uniform", "n times the largest weight; 1 is a plain average"),
    "fading_exponent": Term(
        "fading exponent",
        "b in: largest weight ~ n^-b; 1 is full dispersion, 0 is none",
        column="fading",
        compared=True,
        excerpt=True,
    ),
    "first_mass": Term(
        "sink mass", "share of the mass on the first key", PUBLISHED, column="first", compared=True, excerpt=True
    ),
    "own_mass": Term("own mass", "share of the mass on the query's own key"),
    "previous_mass": Term("previous mass", "share of the mass on the key before the query"),
    "duplicate_mass": Term(
        "duplicate-token mass",
        "share of the mass on the earlier copy of the query's token, on a random sequence that is read twice",
        PUBLISHED,
        excerpt=True,
    ),
    "induction_mass": Term(
        "induction mass",
        "share of the mass on the token after the earlier copy of the query's token, on the same sequence",
        PUBLISHED,
        excerpt=True,
    ),
    "first_value_norm": Term(
        "value norm of the first token", "length of the first token's value / mean length of the others", excerpt=True
    ),
    "output_rank": Term(
        "output rank",
        "effective rank of the head's outputs: (sum of eigenvalues)^2 / sum of their squares; 1 is one direction",
        excerpt=True,
    ),
    "row_mass": Term(
        "row mass", "sum of the weights of a row; 1 for softmax, any value otherwise", compared=True, excerpt=True
    ),
    "spread": Term("score range", "largest minus smallest score of a row"),
    "required_spread": Term("required range", "log(n - 1): the score range needed to give one key half of the mass"),
    "can_focus": Term("can focus", "share of rows whose score range is at least the required range"),
    "reach": Term(
        "focus limit",
        "1 + exp(score range) at the longest contexts: number of visible keys beyond which no key can get half",
        column="limit",
        excerpt=True,
    ),
    "spread_slope": Term(
        "range slope",
        "growth of the score range with log n; a head below 1 eventually loses focus",
        excerpt=True,
    ),
    "focus_until": Term(
        "extrapolated focus limit",
        "number of visible keys where the fitted score range meets log n; null if it grows as fast",
        excerpt=True,
    ),
    "retained": Term("retained mass", "share of the mass on the N largest weights", PUBLISHED),
    "keys_for_mass": Term("keys for 90%", "share of visible keys that holds 90% of the mass"),
    "keys_for_mass_gaussian": Term(
        "keys for 90%, Gaussian", "the same for Gaussian scores with this standard deviation", PUBLISHED
    ),
    "score_deviation": Term("score deviation", "standard deviation of a row's scores"),
    "accepted": Term("accepted keys", "number of keys with a nonzero weight"),
    "accepted_share": Term(
        "accepted share", "share of visible keys with a nonzero weight", column="accepted", compared=True, excerpt=True
    ),
    "refuses_all": Term("empty rows", "share of rows in which every weight is zero", compared=True, excerpt=True),
    "threshold_distance": Term(
        "distance to threshold", "mean score minus the score from which keys are accepted", compared=True
    ),
    "threshold_margin": Term("threshold margin", "largest score of a row minus the threshold"),
    "refused_margin": Term(
        "best refused key", "threshold minus the largest score of a refused key: how far it is from being accepted"
    ),
    "window": Term("window", "tokens after which every key has weight zero; null if there is no end", excerpt=True),
    "acceptance": Term("acceptance", "width r of the accepted cosines (1 - r, 1]", excerpt=True),
    "recall": Term(
        "separability",
        "separability: share of the N largest-weight keys that are nearer to their sum s than any other key",
        RECONSTRUCTED,
        column="recall",
        compared=True,
        table_n=8,
        excerpt=True,
    ),
    "recall_of_shuffled_values": Term(
        "separability, shuffled values", "separability with permuted values", compared=True, table_n=8, excerpt=True
    ),
    "recall_of_random_sets": Term("separability, random sets", "separability of N random keys"),
    "recall_lower": Term(
        "separability, lower bound", "Theorem 2; holds in every row, and is 0 in most", RECONSTRUCTED, excerpt=True
    ),
    "recall_upper": Term(
        "separability, upper bound", "Theorem 2 as published; does not hold", RECONSTRUCTED, excerpt=True
    ),
    "precision": Term("precision", "N / (N + other keys as near as the farthest of the N)", PUBLISHED),
    "f": Term("F", "harmonic mean of precision and separability", PUBLISHED),
    "cosine_recall": Term("separability, cosine", "separability with cosine distance", PUBLISHED),
    "cosine_f": Term("F, cosine", "F with cosine distance", PUBLISHED),
    "distance": Term(
        "distance",
        "sum of |alpha x - s| over all keys but the N largest",
        RECONSTRUCTED,
        excerpt=True,
        excerpt_by_length=True,
    ),
    "distance_bound": Term("distance bound", "Theorem 1 in its linear form; the square-root form fails", RECONSTRUCTED),
    "distance_tightness": Term("tightness", "distance / bound", RECONSTRUCTED, compared=True, table_n=5, excerpt=True),
    "distance_share": Term("distance share", "distance / ((n - N) |output|); 1 if the N keys carry the whole output"),
    "distance_random": Term("distance, random set", "distance for N random keys"),
    "distance_expected_subset": Term(
        "expected, random set",
        "main term of the expected distance in Theorem 1",
        RECONSTRUCTED,
        excerpt=True,
        excerpt_by_length=True,
    ),
    "distance_expected_output": Term(
        "expected, full output",
        "the same term with the full output in place of the sum over the set",
        excerpt=True,
        excerpt_by_length=True,
    ),
    "entropy_floor": Term("entropy floor", "smallest entropy possible for scores this far from their mean", PUBLISHED),
    "entropy_floor_share": Term(
        "entropy floor share",
        "entropy floor / entropy; 1 is as sharp as these scores allow",
        compared=True,
        excerpt=True,
    ),
    "gradient": Term("gradient", "|change of weights| / step at temperature T and step E", PUBLISHED, excerpt=True),
    "gradient_tightness": Term(
        "gradient tightness",
        "largest gradient / min(1/(2T), sqrt 2 / E) over all T and E",
        compared=True,
        excerpt=True,
    ),
    "gradient_above_published": Term(
        "gradient above published", "share of rows with a gradient above min(1/(4T), sqrt 2)", excerpt=True
    ),
    "jacobian": Term("Jacobian", "largest eigenvalue of diag(a) - a a^T, at most 1/2 (the published 1/4 fails)"),
    "saturated": Term(
        "saturated", "share of rows whose Jacobian eigenvalue is below 0.01", compared=True, excerpt=True
    ),
    "left_out_moved": Term(
        "change without the brightest key",
        "sum of the changes of the other weights when the brightest key is removed",
        compared=True,
        excerpt=True,
    ),
    "left_out_gain": Term(
        "relative change without the brightest key", "that change / the sum of the other weights before", excerpt=True
    ),
    "left_out_output": Term(
        "output change without the brightest key",
        "relative change of the head's output when the brightest key is removed",
        compared=True,
        excerpt=True,
    ),
    "brightest_weight": Term(
        "brightest weight", "weight of the brightest key: the largest share of the mass on a key other than the first"
    ),
    "brightest_percentile": Term(
        "absolute percentile", "percentile of the brightest key's score among this head's scores on unrelated text"
    ),
    "brightest_among_best": Term(
        "percentile among brightest keys",
        "percentile of its score among the scores of the brightest keys of unrelated rows",
    ),
    "bright": Term(
        "rows with a bright key",
        "share of the rows with nonzero mass that have a bright key: at least 30% of it on a key other than the first",
        compared=True,
        excerpt=True,
    ),
    "only_relatively_bright": Term(
        "relatively bright only",
        "share of bright keys below the median brightest key of unrelated text; relative mechanisms only",
        compared=True,
        excerpt=True,
    ),
}


def listed_name(name: str) -> str:
    """The key of TERMS for a diagnostic: "recall" for "recall_8", "entropy" for "entropy_without_first"."""
    base = name.removesuffix("_without_first")
    return base if base in TERMS else re.sub(r"(_[\d.]+)+$", "", base)


def term(name: str) -> Term:
    """The term of a diagnostic in a record, e.g. "recall_8", "gradient_0.1_0.001" or "entropy_without_first"."""
    base = listed_name(name)
    listed, suffix = TERMS[base], ""
    if name.endswith("_without_first"):
        suffix = ", without the first key"
    elif name != base:
        numbers = name[len(base) + 1 :].split("_")
        suffix = f", N = {numbers[0]}" if len(numbers) == 1 else f", T = {numbers[0]}, step {numbers[1]}"
    in_tables = name == table_name(base)
    return replace(
        listed,
        title=listed.title + suffix,
        column=listed.column if in_tables else None,
        compared=listed.compared and in_tables,
    )


def table_name(base: str) -> str:
    """The diagnostic that tables show for a key of TERMS: "recall_8" for "recall"."""
    number = TERMS[base].table_n
    return base if number is None else f"{base}_{number}"


def in_excerpt(name: str) -> bool:
    """Whether a diagnostic is kept when a record is reduced to an excerpt."""
    return TERMS[listed_name(name)].excerpt or term(name).compared


def columns() -> list[tuple[str, str]]:
    """Name and heading of each column in the terminal's table of heads."""
    return [(table_name(base), known.column) for base, known in TERMS.items() if known.column is not None]


def compared() -> list[tuple[str, str]]:
    """Name and title of each row in tables that compare models."""
    names = (table_name(base) for base, known in TERMS.items() if known.compared)
    return [(name, term(name).title) for name in names]


def in_order(names: set[str]) -> list[str]:
    """Diagnostics sorted as in TERMS; those of one term by their numbers."""
    place = {base: number for number, base in enumerate(TERMS)}

    def key(name: str) -> tuple[int, int, list[float]]:
        numbers = re.search(r"((?:_[\d.]+)*)$", name)
        assert numbers is not None
        values = [float(part) for part in numbers[1].split("_") if part]
        return place[listed_name(name)], name.endswith("_without_first"), values

    return sorted(names, key=key)


def _escape_pipes(text: str) -> str:
    """Escape the norm bars of a formula, which would end a table cell."""
    return text.replace("|", r"\|")


def markdown() -> str:
    """The table of docs/lens-reference.md."""
    rows = (table_row(f"`{name}`", _escape_pipes(known.meaning), known.origin) for name, known in TERMS.items())
    return "\n".join((*table_head("name", "meaning", "origin"), *rows))


if __name__ == "__main__":
    sys.stdout.write(markdown() + "\n")
