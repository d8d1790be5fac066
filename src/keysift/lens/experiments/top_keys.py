"""How few keys suffice: the loss when every row keeps only its N largest weights (arXiv:2609.37879).

"deletion" leaves the kept weights as they are; "renormalised" rescales them to the sum of the whole row. N*(tau) is the
smallest N whose loss is at most 1 + tau times the loss of the whole model, for all heads at once or for a single head.
The search doubles N and then bisects, assuming that the loss falls with N; every N that it tries is recorded.

Letters: H heads, T queries, S keys.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from keysift.lens.layer_view import Block, LayerView
from keysift.lens.model import Progress, TextSet, no_progress

LIMITS = (0.01, 0.05, 0.10)
WAYS = (("deletion", False), ("renormalised", True))
LossOfCount = Callable[[int], float]


def keep_top(block: Block, count: int, renormalise: bool) -> Tensor:
    """Weights with all but the `count` largest of each row set to zero."""
    magnitude = block.magnitude_HTS
    if count >= magnitude.shape[-1]:
        return block.weights_HTS
    top = magnitude.topk(count, dim=-1).indices
    kept = torch.zeros_like(magnitude).scatter(-1, top, block.weights_HTS.gather(-1, top))
    if not renormalise:
        return kept
    kept_mass, mass = kept.abs().sum(-1, keepdim=True), magnitude.sum(-1, keepdim=True)
    return kept * torch.where(kept_mass > 0, mass / kept_mass, 0.0)


def loss_with_top(texts: TextSet, count: int, *, renormalise: bool, head: tuple[int, int] | None = None) -> float:
    """The loss with the top `count` keys in every head, or in one head (layer, head) only."""

    def new_weights(block: Block) -> Tensor:
        kept = keep_top(block, count, renormalise)
        if head is None:
            return kept
        weights = block.weights_HTS.clone()
        weights[head[1]] = kept[head[1]]
        return weights

    def visit(view: LayerView) -> Tensor | None:
        return view.output(new_weights) if head is None or head[0] == view.layer else None

    return texts.loss(visit)


def smallest(loss: LossOfCount, whole: float, most: int) -> tuple[dict[str, int], dict[int, float]]:
    """N* for each limit, and the loss for every N that was tried. N = `most` keeps everything."""
    tried: dict[int, float] = {most: whole}

    def suffices(count: int, limit: float) -> bool:
        if count not in tried:
            tried[count] = loss(count)
        return tried[count] <= (1 + limit) * whole  # the loss can be 0

    counts: dict[str, int] = {}
    for limit in LIMITS:
        low, high = 0, 1
        while high < most and not suffices(high, limit):
            low, high = high, 2 * high
        high = min(high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if suffices(middle, limit) else (middle, high)
        counts[f"{limit:g}"] = high
    return counts, dict(sorted(tried.items()))


def top_keys(texts: TextSet, *, each_head: bool = True, progress: Progress = no_progress) -> dict[str, object]:
    """N* of the whole model and, with `each_head`, of each head alone."""
    whole, most = texts.loss(), max(map(len, texts.texts))
    result: dict[str, object] = {"tokens": most, "loss": whole}
    for way, renormalise in WAYS:
        counts, tried = smallest(_loss(texts, renormalise, None), whole, most)
        result[way] = {"smallest": counts, "tried": {str(count): loss for count, loss in tried.items()}}
    if not each_head:
        return result
    heads = [(layer, head) for layer, count in enumerate(texts.model.info.heads) for head in range(count)]
    rows = []
    for done, head in enumerate(heads, 1):
        row: dict[str, object] = {"layer": head[0], "head": head[1]}
        row |= {way: smallest(_loss(texts, renormalise, head), whole, most)[0] for way, renormalise in WAYS}
        rows.append(row)
        progress("fewest keys of each head", done, len(heads))
    return result | {"heads": rows}


def _loss(texts: TextSet, renormalise: bool, head: tuple[int, int] | None) -> LossOfCount:
    return lambda count: loss_with_top(texts, count, renormalise=renormalise, head=head)
