"""Published claims about normalised attention against a record: python -m keysift.lens.claims RECORD.json

Given several records, they are put side by side instead. The claims are those of arXiv:2508.17821 on GPT-2 with 1,024
tokens and of arXiv:2410.01104. No torch: plain data in, Markdown out. A verdict is about this model and these texts.
"""

import math
import sys
from collections.abc import Sequence

from keysift.core.shown import shown_text
from keysift.lens.findings import mean
from keysift.lens.record import Record, load

SETS = (1, 2, 4, 8, 16, 32, 64)
TEMPERATURES = (0.05, 0.1, 0.5, 1.0, 2.0)
Row = tuple[str, str, str]  # claim, measured, verdict


def claims(record: Record) -> list[Row]:
    return [
        _separability(record),
        _above_null(record),
        _bound(record),
        _growth(record),
        _gradient(record),
        _warm(record),
        _published_bound(record),
        _dispersion(record),
        _focus(record),
    ]


def _numbers(values: Sequence[float | None], digits: int = 2) -> str:
    return ", ".join("-" if value is None else f"{value:.{digits}f}" for value in values)


def _separability(record: Record) -> Row:
    found = [mean(record.heads, f"recall_{n}") for n in SETS]
    late = [value for value in found[4:] if value is not None]
    inside = bool(late) and all(0.7 <= value <= 0.85 for value in late)
    return (
        "separability falls until N = 16, then saturates at 0.70 to 0.85",
        f"N = 1, 2, ..., 64: {_numbers(found)}",
        "holds" if inside else "does not hold",
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
        "holds" if known and min(known) > 0.02 else "does not hold",
    )


def _bound(record: Record) -> Row:
    tight = [head.values.get(f"distance_tightness_{n}") for n in (5, 20) for head in record.heads]
    known = [value for value in tight if value is not None]
    return (
        "the distance stays below its bound (linear form), loosely",
        f"distance / bound: {sum(known) / len(known):.2f} on average, {max(known):.2f} at most",
        "holds" if max(known) <= 1 else "does not hold",
    )


def _growth(record: Record) -> Row:
    points = _by_length(record, "distance_5")
    slope = _slope(points)
    return (
        "the distance at N = 5 grows linearly with the context",
        f"exponent of n: {slope:.2f} over {points[0][0]:.0f} to {points[-1][0]:.0f} visible keys",
        "holds" if 0.8 <= slope <= 1.2 else "does not hold",
    )


def _gradient(record: Record) -> Row:
    most = [_most(record, f"gradient_{tau:g}_0.001") for tau in TEMPERATURES]
    slope = -_slope([(tau, value) for tau, value in zip(TEMPERATURES[:2], most, strict=False)])
    return (
        "the largest gradient over heads grows like 1/T below T = 0.1",
        f"T = 0.05, 0.1, 0.5, 1, 2: {_numbers(most)}; exponent below 0.1: {slope:.2f}",
        "holds" if 0.8 <= slope <= 1.2 else "does not hold",
    )


def _warm(record: Record) -> Row:
    cold, warm = _most(record, "gradient_0.05_0.001"), _most(record, "gradient_1_0.001")
    return (
        "at T >= 1 it is two orders of magnitude smaller than at small T",
        f"T = 0.05 against T = 1: {cold / warm:.1f} times",
        "holds" if cold / warm >= 50 else "does not hold",
    )


def _published_bound(record: Record) -> Row:
    most = _most(record, "jacobian")
    return (
        "the Jacobian is at most 1/4 (T = 1); ours: at most 1/2",
        f"largest mean of a head: {most:.3f}",
        "means say nothing against it" if most <= 0.25 else "does not hold; 1/2 does",
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
        "holds for these heads" if flat else "does not hold here",
    )


def _most(record: Record, name: str) -> float:
    return max(value for head in record.heads if (value := head.values.get(name)) is not None)


def _by_length(record: Record, name: str) -> list[tuple[float, float]]:
    points = []
    for bucket, (low, high) in enumerate(record.lengths):
        found = [head.by_length[name][bucket] for head in record.heads if name in head.by_length]
        known = [value for value in found if value is not None]
        if known:
            points.append((min((low + high) / 2, max(text.tokens for text in record.texts)), sum(known) / len(known)))
    return points


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


# Mean over heads, for models side by side.
COMPARED = (
    ("effective_keys", "effective keys of a row"),
    ("largest_weight", "largest weight, as a share of the mass"),
    ("fading_exponent", "fading exponent of the largest weight"),
    ("first_mass", "share of the mass on the first key"),
    ("row_mass", "sum of a row's weights"),
    ("accepted_share", "share of visible keys that is accepted"),
    ("refuses_all", "rows that accept nothing"),
    ("left_out_moved", "change of the other weights when the brightest key leaves"),
    ("left_out_output", "relative change of the output when it leaves"),
    ("only_relatively_bright", "bright keys that are only relatively bright"),
)


def side_by_side(records: Sequence[Record]) -> str:
    def line(title: str, values: Sequence[float | None]) -> str:
        return f"| {title} | {' | '.join(map(_shown, values))} |"

    names = [record.model.name for record in records]
    lines = [f"| mean over heads | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    lines.append(line("parameters", [record.model.parameters for record in records]))
    lines.append(line("loss, nats a token", [record.texts[0].loss for record in records]))
    lines += [line(title, [mean(record.heads, name) for record in records]) for name, title in COMPARED]
    lines.append(line("dilution exponent", [_diluted(record) for record in records]))
    lines.append(line("loss without the brightest keys", [r.tests["leave_out"]["brightest"] for r in records]))
    fewest = [record.tests["functional"]["deletion"]["smallest"]["0.05"] for record in records]
    lines.append(line("fewest keys within 5% of the loss", fewest))
    return "\n".join(lines)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _diluted(record: Record) -> float | None:
    known = [row["exponent"] for row in record.tests["dilution"]["heads"] if row["exponent"] is not None]
    return sum(known) / len(known) if known else None


if __name__ == "__main__":
    given = [load(path) for path in sys.argv[1:]]
    sys.stdout.write(shown_text((markdown(given[0]) if len(given) == 1 else side_by_side(given)) + "\n"))
