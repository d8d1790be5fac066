"""Losses and predictions at the targets of long rows, computed in chunks through a cache.

Logits are formed at the targets of one chunk at a time, so memory does not grow with length x vocabulary.
Letters: B rows, T tokens, D model width, N vocabulary, X targets of a chunk.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.core import shapes
from keysift.data.batches import IGNORE
from keysift.models.language_model import LanguageModel
from keysift.nn.inference import Inference

CHUNK = 1024


@dataclass(frozen=True)
class TargetScores:
    """Loss in nats and most likely token at every target, B T; 0 and IGNORE at positions without a target."""

    loss_BT: Tensor
    predicted_BT: Tensor


@torch.no_grad()
def score_targets(
    model: LanguageModel,
    tokens_BT: Tensor,
    targets_BT: Tensor,
    *,
    keep_BT: Tensor | None = None,
    inference: Inference | None = None,
    chunk: int = CHUNK,
) -> TargetScores:
    """Score every target that is not IGNORE. `chunk` bounds memory and does not change the result."""
    for axis, name in enumerate(("rows", "length")):
        shapes.same(name, "tokens", tokens_BT.shape[axis], "targets", targets_BT.shape[axis])
    device = next(model.parameters()).device
    loss_BT = torch.zeros(tokens_BT.shape)
    predicted_BT = torch.full(tokens_BT.shape, IGNORE)
    cache = model.cache(len(tokens_BT), inference=inference)
    for first in range(0, tokens_BT.shape[1], chunk):
        piece = slice(first, first + chunk)
        keep = None if keep_BT is None or bool(keep_BT[:, piece].all()) else keep_BT[:, piece].to(device)
        scored_BT = targets_BT[:, piece] != IGNORE
        if not bool(scored_BT.any()):
            model.fill(tokens_BT[:, piece].to(device), keep=keep, cache=cache)
            continue
        x_BTD = model.hidden(tokens_BT[:, piece].to(device), keep=keep, cache=cache)
        logits_XN = model.readout(x_BTD[scored_BT.to(device)]).float()
        targets_X = targets_BT[:, piece][scored_BT].to(device)
        loss_BT[:, piece][scored_BT] = F.cross_entropy(logits_XN, targets_X, reduction="none").cpu()
        predicted_BT[:, piece][scored_BT] = logits_XN.argmax(-1).cpu()
    return TargetScores(loss_BT, predicted_BT)
