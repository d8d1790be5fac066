"""The same key with different competitors: weights under every mechanism.

The contexts are two keys, a third key added, all keys strong, and no key relevant. If the weight of a key changes from
one context to the next although its score does not, the weight is relative. Mechanisms with two maps get a second map
of equal scores. A logit is not a cosine, so each context has both: scores for mechanisms that read logits, cosines for
those that read cosines.
"""

import torch

from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS
from keysift.mechanisms.spec import Mechanism, Promise
from keysift.records.competitors import Context, ContextExperiment, Row

CONTEXTS = (
    Context(title="two keys", scores=(2.0, 1.0), cosines=(0.9, 0.7)),
    Context(title="a third key is added", scores=(2.0, 1.0, 0.5), cosines=(0.9, 0.7, 0.55)),
    Context(title="all are strong", scores=(10.0, 10.0, 10.0), cosines=(1.0, 1.0, 1.0)),
    Context(title="nothing is relevant", scores=(-3.0, -3.0, -3.0), cosines=(-0.9, -0.9, -0.9)),
)


def context_experiment(contexts: tuple[Context, ...] = CONTEXTS) -> ContextExperiment:
    """Weights of all registered mechanisms in every context."""
    return ContextExperiment(contexts=contexts, rows=tuple(_row(mechanism, contexts) for mechanism in MECHANISMS))


def _row(mechanism: Mechanism, contexts: tuple[Context, ...]) -> Row:
    read = [c.cosines if mechanism.cosine_scores else c.scores for c in contexts]
    weights = tuple(tuple(weigh(mechanism, torch.tensor(row, dtype=torch.float64)).tolist()) for row in read)
    return Row(
        mechanism=mechanism.name,
        title=mechanism.title,
        formula=mechanism.formula,
        absolute=Promise.ABSOLUTE in mechanism.holds,
        read=tuple(read),
        weights=weights,
        moved=_moved(read, weights),
    )


def _moved(read: list[tuple[float, ...]], weights: tuple[tuple[float, ...], ...]) -> tuple[tuple[bool, ...], ...]:
    """Marks weights that differ from the previous context although the key's score is the same."""
    marks = [tuple(False for _ in weights[0])]
    for before, after, old, new in zip(read, read[1:], weights, weights[1:], strict=False):
        marks.append(
            tuple(
                j < len(old) and before[j] == after[j] and abs(old[j] - weight) > 1e-9 for j, weight in enumerate(new)
            )
        )
    return tuple(marks)
