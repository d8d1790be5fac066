"""Latency curves of a benchmark of models, for the report and for figures."""

from keysift.records.bench import Result

STEPS = ("forward", "training step", "decode")


def latency_lines(result: Result, step: str) -> dict[str, list[tuple[float, float]]]:
    """Return (tokens, median seconds) points by name, for everything timed at two lengths or more."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        if row.step == step:
            lines.setdefault(row.what, []).append((float(row.tokens), row.seconds.median))
    return {name: sorted(points) for name, points in lines.items() if len(points) > 1}
