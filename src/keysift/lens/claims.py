"""Published claims about normalised attention against a record: python -m keysift.lens.claims RECORD.json

The claims are those of arXiv:2508.17821 on GPT-2 with 1,024 tokens and of arXiv:2410.01104. No torch: plain data in,
Markdown out. A verdict is about this model and these texts.
"""

import math
import sys
from collections.abc import Sequence

from keysift.core.shown import shown_text
from keysift.lens import critical
from keysift.lens.findings import mean
from keysift.lens.record import Record, load

SETS = (1, 2, 4, 8, 16, 32, 64)
COLD, WARM = (0.02, 0.05, 0.1), (1.0, 2.0, 8.0)  # temperatures
Row = tuple[str, str, str]  # claim, measured, verdict


def claims(record: Record) -> list[Row]:
    return [
        _separability(record),
        _above_null(record),
        _theorem_2(record),
        _bound(record),
        _growth(record),
        _plateau(record),
        _critical(record),
        _gradient(record),
        _warm(record),
        _published_bound(record),
        _dispersion(record),
        _focus(record),
    ]


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def _numbers(values: Sequence[float | None], digits: int = 2) -> str:
    return ", ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def _separability(record: Record) -> Row:
    found = [mean(record.heads, f"recall_{n}") for n in SETS]
    late = [value for value in found[4:] if value is not None]
    inside = bool(late) and all(0.7 <= value <= 0.85 for value in late)
    return (
        "separability falls until N = 16, then saturates at 0.70 to 0.85",
        f"N = 1, 2, ..., 64: {_numbers(found)}",
        _verdict(inside),
    )


def _above_null(record: Record) -> Row:
    gaps = []
    for n in SETS[1:]:
        own, null = mean(record.heads, f"recall_{n}"), mean(record.heads, f"recall_of_shuffled_values_{n}")
        gaps.append(None if own is None or null is None else own - null)
    known = [gap for gap in gaps if gap is not None]
    return (
        "(ours) separability says more than the weights alone: it exceeds that of shuffled values",
        f"difference at N = 2, ..., 64: {_numbers(gaps)}",
        _verdict(bool(known) and min(known) > 0.02),
    )


def _bound(record: Record) -> Row:
    tight = [head.values.get(f"distance_tightness_{n}") for n in (5, 20) for head in record.heads]
    known = [value for value in tight if value is not None]
    return (
        "the distance stays below its bound (linear form), loosely",
        f"distance / bound: {sum(known) / len(known):.2f} on average, {max(known):.2f} at most",
        _verdict(max(known) <= 1),
    )


def _growth(record: Record) -> Row:
    points = _by_length(record, "distance_5")
    slope = _slope(points)
    return (
        "the distance at N = 5 grows linearly with the context",
        f"exponent of n: {slope:.2f} over {points[0][0]:.0f} to {points[-1][0]:.0f} visible keys",
        _verdict(0.8 <= slope <= 1.2),
    )


def _plateau(record: Record) -> Row:
    bucket = critical.longest_measured(record)
    at = {} if bucket is None else {n: _bucket_mean(record, f"distance_{n}", bucket) for n in critical.counts(record)}
    base = at.get(20)
    shares = {n: value / base for n, value in at.items() if value is not None and base}
    later = [share for n, share in shares.items() if 20 < n <= 100]
    return (
        "at a fixed context the distance has its plateau beyond N = 20",
        f"distance at N / at 20: {', '.join(f'{n}: {share:.2f}' for n, share in shares.items())}",
        _verdict(bool(later) and all(abs(share - 1) <= 0.15 for share in later)),
    )


def _critical(record: Record) -> Row:
    """The published share is about 0.06; which reference it was taken against is not known."""
    found, shares = [], []
    for bucket, (low, high) in enumerate(record.lengths):
        if low < 64 or _bucket_mean(record, "distance_5", bucket) is None:
            continue
        both = [critical.critical(record, bucket, name) for name in (critical.OUTPUT, critical.SUBSET)]
        found.append(f"{low} to {high} keys: {both[0] or '-'} and {both[1] or '-'}")
        shares.append(None if both[0] is None else both[0] / ((low + high) / 2))
    known = [share for share in shares if share is not None]
    return (
        "the critical N is about 0.06 of the context (against the full output, and against a random set)",
        "; ".join(found) or "texts too short",
        "does not hold" if not known or not all(0.03 <= share <= 0.12 for share in known) else "holds for the first",
    )


def _theorem_2(record: Record) -> Row:
    rows = [(n, mean(record.heads, f"recall_lower_{n}")) for n in SETS[1:]]
    above = sum(
        own > upper
        for head in record.heads
        for n in SETS[1:]
        if (own := head.values.get(f"recall_{n}")) is not None
        and (upper := head.values.get(f"recall_upper_{n}")) is not None
    )
    cases = sum(head.values.get(f"recall_{n}") is not None for head in record.heads for n in SETS[1:])
    return (
        "Theorem 2 bounds separability; its lower side is very loose",
        f"lower side at N = 2, ..., 64: {_numbers([low for _, low in rows])}; above the upper side: {above} of {cases} "
        f"means of a head",
        "holds" if not above else "the lower side holds, the upper does not",
    )


def _gradient(record: Record) -> Row:
    most = [_most(record, f"gradient_{T:g}_0.001") for T in (*COLD, *WARM)]
    slope = -_slope(list(zip(COLD, most, strict=False)))
    return (
        "the largest gradient over heads grows like 1/T below T = 0.1 (scores before scaling, step 0.001)",
        f"T = 0.02, 0.05, 0.1, 1, 2, 8: {_numbers(most, 3)}; exponent below 0.1: {slope:.2f}",
        _verdict(0.8 <= slope <= 1.2),
    )


def _warm(record: Record) -> Row:
    cold, warm = _most(record, f"gradient_{COLD[0]:g}_0.001"), _most(record, "gradient_1_0.001")
    return (
        "at T >= 1 it is two orders of magnitude smaller than at small T",
        f"T = {COLD[0]:g} against T = 1: {cold / warm:.1f} times",
        _verdict(cold / warm >= 50),
    )


def _published_bound(record: Record) -> Row:
    above, tight = mean(record.heads, "gradient_above_published"), _most(record, "gradient_tightness")
    return (
        "the gradient is at most min(1/(4T), sqrt 2); ours: at most min(1/(2T), sqrt 2 / step)",
        f"{100 * (above or 0):.1f}% of rows exceed the first; largest mean share of the second: {tight:.2f}",
        "does not hold; ours does" if above and tight <= 1 else "nothing against it here",
    )


def _dispersion(record: Record) -> Row:
    found = [head.values.get("fading_exponent_without_first") for head in record.heads]
    known = [value for value in found if value is not None]
    return (
        "every weight falls like 1/n as the context grows (in the limit)",
        f"exponent of the largest weight: {sum(known) / len(known):.2f} on average, {max(known):.2f} at most",
        "not reached at these lengths" if max(known) < 0.9 else "reached by some heads",
    )


def _focus(record: Record) -> Row:
    longest = max(text.tokens for text in record.texts)
    slopes = [value for head in record.heads if (value := head.values.get("spread_slope")) is not None]
    reaches = [value for head in record.heads if (value := head.values.get("reach")) is not None]
    flat = sum(slope < 1 for slope in slopes)
    lost = sum(reach < longest for reach in reaches)
    return (
        "scores spread too little to stay sharp: the spread must grow like log n",
        f"{flat} of {len(slopes)} heads grow slower; {lost} cannot focus at {longest} keys",
        f"holds for {flat} of {len(slopes)} heads" if flat else "does not hold here",
    )


def _most(record: Record, name: str) -> float:
    return max(value for head in record.heads if (value := head.values.get(name)) is not None)


def _bucket_mean(record: Record, name: str, bucket: int) -> float | None:
    found = [head.by_length[name][bucket] for head in record.heads if name in head.by_length]
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known else None


def _by_length(record: Record, name: str) -> list[tuple[float, float]]:
    longest = max(text.tokens for text in record.texts)
    every = (
        (min((low + high) / 2, longest), _bucket_mean(record, name, k)) for k, (low, high) in enumerate(record.lengths)
    )
    return [(keys, value) for keys, value in every if value is not None]


def _slope(points: Sequence[tuple[float, float]]) -> float:
    x, y = [math.log(a) for a, _ in points], [math.log(b) for _, b in points]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - middle) ** 2 for a in x)


def markdown(record: Record) -> str:
    text = record.texts[0]
    lines = [
        f"{record.model.name} ({record.model.family}, {record.model.parameters:,} parameters), {text.tokens} tokens, "
        f"loss {text.loss:.3f} nats a token.",
        "",
        "| claim | measured | verdict |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in claims(record)),
        "",
        *(f"- {sentence}" for sentence in record.findings),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(shown_text(markdown(load(sys.argv[1])) + "\n"))
