"""What the context experiment found, as plain data: the table, the page and the JSON are all made from this."""

from keysift.core.config import config


@config
class Context:
    """One situation: the keys present, as logits and as cosines; a mechanism reads one of the two."""

    title: str
    scores: tuple[float, ...]
    cosines: tuple[float, ...]


@config
class Row:
    """One mechanism's weights in every context, and which of them moved although their own score had not."""

    mechanism: str
    title: str
    formula: str
    absolute: bool
    read: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float, ...], ...]
    moved: tuple[tuple[bool, ...], ...]


@config
class ContextExperiment:
    contexts: tuple[Context, ...]
    rows: tuple[Row, ...]
