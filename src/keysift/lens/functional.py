"""How few keys suffice: the loss when every row keeps only its N heaviest keys (arXiv:2609.37879).

Deletion leaves the kept weights as they are; renormalised divides them by their sum, times the sum of the whole row.
N*(tau) is the smallest N whose loss is at most 1 + tau times the loss of the whole model, for the model and for a head
changed alone. It is searched by doubling N and then halving, which takes the loss to fall with N; every N that was
tried is recorded.

Letters: H heads, T queries, S keys.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from keysift.lens.reading import Block, Reading
from keysift.lens.subject import Progress, Sample, silent

LIMITS = (0.01, 0.05, 0.10)
WAYS = (("deletion", False), ("renormalised", True))
Loss = Callable[[int], float]


def heaviest(block: Block, count: int, renormalise: bool) -> Tensor:
    """Weights with all but the `count` heaviest of each row set to zero."""
    size = block.size_HTS
    if count >= size.shape[-1]:
        return block.weights_HTS
    chosen = size.topk(count, dim=-1).indices
    kept = torch.zeros_like(size).scatter(-1, chosen, block.weights_HTS.gather(-1, chosen))
    if not renormalise:
        return kept
    held, whole = kept.abs().sum(-1, keepdim=True), size.sum(-1, keepdim=True)
    return kept * torch.where(held > 0, whole / held, 0.0)


def loss_with_top(sample: Sample, count: int, *, renormalise: bool, head: tuple[int, int] | None = None) -> float:
    """Of the whole model, or with one head (layer, head) changed and all others as they are."""

    def change(block: Block) -> Tensor:
        kept = heaviest(block, count, renormalise)
        if head is None:
            return kept
        weights = block.weights_HTS.clone()
        weights[head[1]] = kept[head[1]]
        return weights

    def visit(reading: Reading) -> Tensor | None:
        return reading.output(change) if head is None or head[0] == reading.layer else None

    return sample.loss(visit)


def smallest(loss: Loss, whole: float, most: int) -> tuple[dict[str, int], dict[int, float]]:
    """N* for each limit, and the loss of every N that was tried. N = `most` keeps everything."""
    tried: dict[int, float] = {most: whole}

    def rise(count: int) -> float:
        if count not in tried:
            tried[count] = loss(count)
        return tried[count] / whole - 1

    found: dict[str, int] = {}
    for limit in LIMITS:
        low, high = 0, 1
        while high < most and rise(high) > limit:
            low, high = high, 2 * high
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if rise(middle) <= limit else (middle, high)
        found[f"{limit:g}"] = high
    return found, dict(sorted(tried.items()))


def functional(sample: Sample, *, heads: bool = True, progress: Progress = silent) -> dict[str, object]:
    """The test of the whole model and, if asked, of each head alone."""
    whole, most = sample.loss(), max(map(len, sample.texts))
    found: dict[str, object] = {"tokens": most, "loss": whole}
    for way, renormalise in WAYS:
        best, tried = smallest(_loss(sample, renormalise, None), whole, most)
        found[way] = {"smallest": best, "tried": {str(count): loss for count, loss in tried.items()}}
    if not heads:
        return found
    every = [(layer, head) for layer, number in enumerate(sample.subject.about.heads) for head in range(number)]
    rows = []
    for done, head in enumerate(every, 1):
        row: dict[str, object] = {"layer": head[0], "head": head[1]}
        row |= {way: smallest(_loss(sample, renormalise, head), whole, most)[0] for way, renormalise in WAYS}
        rows.append(row)
        progress("fewest keys of each head", done, len(every))
    return found | {"heads": rows}


def _loss(sample: Sample, renormalise: bool, head: tuple[int, int] | None) -> Loss:
    return lambda count: loss_with_top(sample, count, renormalise=renormalise, head=head)
