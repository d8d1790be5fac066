"""What kind of head this is, from its means: plain names with fixed limits, so that two readers see the same kind."""

from collections.abc import Mapping

SINK, PREVIOUS, OWN, UNIFORM, FOCUSED, THRESHOLD = (
    "sink",
    "previous token",
    "own token",
    "uniform",
    "focused",
    "threshold",
)
HALF = 0.5
# Attention over 90% as many keys as are visible is hard to tell from an average of all of them.
UNIFORM_SHARE = 0.9

MEANING = {
    SINK: "more than half of its mass lies on the first key: it mostly reads nothing",
    PREVIOUS: "more than half of its mass lies on the token before the query",
    OWN: "more than half of its mass lies on the query's own token",
    UNIFORM: "it spreads over at least 90% as many keys as it sees: it averages",
    FOCUSED: "its largest weight is above one half on average, and on no fixed place",
    THRESHOLD: "it accepts each key by a threshold and can refuse all of them",
}


def kinds(values: Mapping[str, float | None]) -> tuple[str, ...]:
    def above(name: str, limit: float) -> bool:
        value = values.get(name)
        return value is not None and value > limit

    found = [
        name
        for name, mass in ((SINK, "first_mass"), (PREVIOUS, "previous_mass"), (OWN, "own_mass"))
        if above(mass, HALF)
    ]
    if above("effective_share", UNIFORM_SHARE):
        found.append(UNIFORM)
    if values.get("threshold_margin") is not None:
        found.append(THRESHOLD)
    if not found and above("largest_weight", HALF):
        found.append(FOCUSED)
    return tuple(found)
