"""The context experiment: the same key among different company, through every mechanism.

Two keys; a third one comes; all are strong; nothing is relevant. A weight that moves from one context to the next
although its own score did not was never a judgement of that key. Mechanisms that compare two maps get a second map of
equal scores. No number is both a logit and a cosine, so each context says both: scores for mechanisms that read logits,
cosines for those that read cosines.
"""

import torch

from keysift.evaluate.record import Context, ContextExperiment, Row
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism, Promise, Site

CONTEXTS = (
    Context(title="two keys", scores=(2.0, 1.0), cosines=(0.9, 0.7)),
    Context(title="a third key comes", scores=(2.0, 1.0, 0.5), cosines=(0.9, 0.7, 0.55)),
    Context(title="all are strong", scores=(10.0, 10.0, 10.0), cosines=(1.0, 1.0, 1.0)),
    Context(title="nothing is relevant", scores=(-3.0, -3.0, -3.0), cosines=(-0.9, -0.9, -0.9)),
)
SITE = Site(context=4)  # small, so that mechanisms which divide by the context length show readable numbers


def context_experiment(contexts: tuple[Context, ...] = CONTEXTS) -> ContextExperiment:
    return ContextExperiment(contexts=contexts, rows=tuple(_row(mechanism, contexts) for mechanism in MECHANISMS))


def _row(mechanism: Mechanism, contexts: tuple[Context, ...]) -> Row:
    scalars = {scalar.name: scalar.default(SITE) for scalar in mechanism.scalars if scalar.follows is None}
    read = [c.cosines if mechanism.cosine_scores else c.scores for c in contexts]
    found = tuple(
        tuple(weigh(mechanism, torch.tensor(row, dtype=torch.float64), scalars=scalars).tolist()) for row in read
    )
    return Row(
        mechanism=mechanism.name,
        title=mechanism.title,
        formula=mechanism.formula,
        absolute=Promise.ABSOLUTE in mechanism.holds,
        read=tuple(read),
        weights=found,
        moved=_moved(read, found),
    )


def _moved(read: list[tuple[float, ...]], found: tuple[tuple[float, ...], ...]) -> tuple[tuple[bool, ...], ...]:
    """Against the context before: same key, same score, another weight. The first context has nothing before it."""
    marks = [tuple(False for _ in found[0])]
    for before, after, old, new in zip(read, read[1:], found, found[1:], strict=False):
        marks.append(
            tuple(
                j < len(old) and before[j] == after[j] and abs(old[j] - weight) > 1e-9 for j, weight in enumerate(new)
            )
        )
    return tuple(marks)
