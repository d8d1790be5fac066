"""Check published claims about normalized attention against a lens record, as a Markdown table.

    python -m evidence.claims.lens_claims RECORD.json

The claims are from arXiv:2508.17821 (GPT-2, 1,024 tokens) and arXiv:2410.01104. A verdict applies to this model and
these texts only. No torch.
"""

import sys
from collections.abc import Sequence

from keysift.core.markdown import table_head, table_row
from keysift.core.statistics import power_law_exponent
from keysift.core.terminal import escape_text
from keysift.lens.diagnostics import critical_n as critical
from keysift.lens.findings.all_findings import findings
from keysift.lens.findings.numbers import mean
from keysift.records.lens import Record, load

TOP_KEYS = (1, 2, 4, 8, 16, 32, 64)
COLD, WARM = (0.02, 0.05, 0.1), (1.0, 2.0, 8.0)  # temperatures
Row = tuple[str, str, str]  # claim, measured, verdict


def claims(record: Record) -> list[Row]:
    """One row per claim."""
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


def settled(record: Record) -> list[Row]:
    """The claims that one model can settle: dispersion, separability, and the growth and bound of gradients."""
    return [_dispersion(record), _separability(record), _gradient(record), _published_bound(record)]


def _verdict(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def _numbers(values: Sequence[float | None], digits: int = 2) -> str:
    return ", ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def _separability(record: Record) -> Row:
    values = [mean(record.heads, f"recall_{n}") for n in TOP_KEYS]
    late = [value for value in values[4:] if value is not None]
    inside = bool(late) and all(0.7 <= value <= 0.85 for value in late)
    return (
        "Separability falls until N = 16, then saturates at 0.70 to 0.85",
        f"N = 1, 2, ..., 64: {_numbers(values)}",
        _verdict(inside),
    )


def _above_null(record: Record) -> Row:
    gaps = []
    for n in TOP_KEYS[1:]:
        own, null = mean(record.heads, f"recall_{n}"), mean(record.heads, f"recall_of_shuffled_values_{n}")
        gaps.append(None if own is None or null is None else own - null)
    known = [gap for gap in gaps if gap is not None]
    return (
        "Our claim: separability depends on the values, so it exceeds that of shuffled values",
        f"difference at N = 2, ..., 64: {_numbers(gaps)}",
        _verdict(bool(known) and min(known) > 0.02),
    )


def _bound(record: Record) -> Row:
    tight = [head.values.get(f"distance_tightness_{n}") for n in (5, 20) for head in record.heads]
    known = [value for value in tight if value is not None]
    return (
        "The distance stays well below its bound (linear form)",
        f"distance / bound: {sum(known) / len(known):.2f} on average, {max(known):.2f} at most",
        _verdict(max(known) <= 1),
    )


def _growth(record: Record) -> Row:
    points = _by_length(record, "distance_5")
    slope = power_law_exponent(points)
    return (
        "The distance at N = 5 grows linearly with the context",
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
        "At a fixed context, the distance is constant beyond N = 20",
        f"distance at N over distance at 20: {', '.join(f'{n}: {share:.2f}' for n, share in shares.items())}",
        _verdict(bool(later) and all(abs(share - 1) <= 0.15 for share in later)),
    )


def _critical(record: Record) -> Row:
    """The published share is about 0.06. The paper does not say which reference was used."""
    texts, shares = [], []
    for bucket, (low, high) in enumerate(record.lengths):
        if low < 64 or _bucket_mean(record, "distance_5", bucket) is None:
            continue
        both = [critical.critical(record, bucket, name) for name in (critical.OUTPUT, critical.SUBSET)]
        texts.append(f"{low} to {high} keys: {both[0] or 'none'} and {both[1] or 'none'}")
        shares.append(None if both[0] is None else both[0] / ((low + high) / 2))
    known = [share for share in shares if share is not None]
    return (
        "The critical N is about 0.06 of the context (reference: the full output, then a random set of keys)",
        "; ".join(texts) or "texts too short",
        "does not hold" if not known or not all(0.03 <= share <= 0.12 for share in known) else "holds for the first",
    )


def _theorem_2(record: Record) -> Row:
    cases = [
        (value, head.values.get(f"recall_lower_{n}"), head.values.get(f"recall_upper_{n}"))
        for head in record.heads
        for n in TOP_KEYS[1:]
        if (value := head.values.get(f"recall_{n}")) is not None
    ]
    above = sum(upper is not None and value > upper for value, _, upper in cases)
    below = any(lower is not None and value < lower - 1e-4 for value, lower, _ in cases)  # records are rounded
    return (
        "Theorem 2 bounds separability; the lower bound is very loose",
        f"lower bound at N = 2, ..., 64: {_numbers([mean(record.heads, f'recall_lower_{n}') for n in TOP_KEYS[1:]])}; "
        f"above the upper bound: {above} of {len(cases)} head means",
        "does not hold" if below else "holds" if not above else "the lower bound holds, the upper does not",
    )


def _gradient(record: Record) -> Row:
    most = [_largest(record, f"gradient_{T:g}_0.001") for T in (*COLD, *WARM)]
    slope = -power_law_exponent(zip(COLD, most, strict=False))
    return (
        "The largest gradient over heads grows like 1/T below T = 0.1 (scores before scaling, step 0.001)",
        f"T = 0.02, 0.05, 0.1, 1, 2, 8: {_numbers(most, 3)}; exponent below 0.1: {slope:.2f}",
        _verdict(0.8 <= slope <= 1.2),
    )


def _warm(record: Record) -> Row:
    cold, warm = _largest(record, f"gradient_{COLD[0]:g}_0.001"), _largest(record, "gradient_1_0.001")
    return (
        "At T >= 1 the largest gradient is two orders of magnitude smaller than at small T",
        f"{cold / warm:.1f} times as large at T = {COLD[0]:g} as at T = 1",
        _verdict(cold / warm >= 50),
    )


def _published_bound(record: Record) -> Row:
    above, tight = mean(record.heads, "gradient_above_published"), _largest(record, "gradient_tightness")
    return (
        "The gradient is at most min(1/(4T), sqrt 2) (our bound: min(1/(2T), sqrt 2 / step))",
        f"{100 * (above or 0):.1f}% of rows exceed the published bound; largest mean ratio to our bound: {tight:.2f}",
        "does not hold; our bound does" if above and tight <= 1 else "not contradicted",
    )


def _dispersion(record: Record) -> Row:
    exponents = [head.values.get("fading_exponent_without_first") for head in record.heads]
    known = [value for value in exponents if value is not None]
    return (
        "Every weight falls like 1/n as the context grows (in the limit)",
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
        "The spread of the scores grows more slowly than log n, so heads lose their focus",
        f"it grows more slowly in {flat} of {len(slopes)} heads; {lost} cannot focus at {longest} keys",
        f"holds for {flat} of {len(slopes)} heads" if flat else "does not hold",
    )


def _largest(record: Record, name: str) -> float:
    return max(value for head in record.heads if (value := head.values.get(name)) is not None)


def _bucket_mean(record: Record, name: str, bucket: int) -> float | None:
    values = [head.by_length[name][bucket] for head in record.heads if name in head.by_length]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _by_length(record: Record, name: str) -> list[tuple[float, float]]:
    longest = max(text.tokens for text in record.texts)
    means = (
        (min((low + high) / 2, longest), _bucket_mean(record, name, k)) for k, (low, high) in enumerate(record.lengths)
    )
    return [(keys, value) for keys, value in means if value is not None]


def markdown(record: Record) -> str:
    text = record.texts[0]
    lines = [
        f"{record.model.name} ({record.model.family}, {record.model.parameters:,} parameters), {text.tokens} tokens, "
        f"loss {text.loss:.3f} nats per token.",
        "",
        *table_head("claim", "measured", "verdict"),
        *(table_row(*row) for row in claims(record)),
        "",
        *(f"- {finding.sentence}" for finding in findings(record)),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(escape_text(markdown(load(sys.argv[1])) + "\n"))
