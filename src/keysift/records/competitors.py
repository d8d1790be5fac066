"""Record of the experiment with the same key and different competitors."""

from keysift.core.config import config


@config
class Context:
    """A set of keys, as logits and as cosines. A mechanism reads one of the two."""

    title: str
    scores: tuple[float, ...]
    cosines: tuple[float, ...]


@config
class Row:
    """Weights of one mechanism in every context, and which changed although their own score did not."""

    mechanism: str
    title: str
    formula: str
    absolute: bool
    read: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    moved: tuple[tuple[bool, ...], ...]


@config
class ContextExperiment:
    """Weights of every mechanism in every context."""

    contexts: tuple[Context, ...]
    rows: tuple[Row, ...]
