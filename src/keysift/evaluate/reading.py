"""Long rows read through a cache, a chunk at a time: losses and predictions, and never all logits at once.

Letters: B rows, T tokens, D model width, N vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from keysift.core import shapes
from keysift.data.batches import IGNORE
from keysift.models.language import LanguageModel
from keysift.nn.inference import Inference

CHUNK = 1024


@dataclass(frozen=True)
class Read:
    """Nats of every target and the most likely token there, B T; 0 and IGNORE where nothing was asked."""

    loss_BT: Tensor
    predicted_BT: Tensor


@torch.no_grad()
def read(
    model: LanguageModel,
    tokens_BT: Tensor,
    targets_BT: Tensor,
    *,
    keep_BT: Tensor | None = None,
    inference: Inference | None = None,
    chunk: int = CHUNK,
) -> Read:
    """What the model makes of the targets. `chunk` bounds memory and changes no result: cache equals full forward."""
    for axis, name in enumerate(("rows", "length")):
        shapes.same(name, "tokens", tokens_BT.shape[axis], "targets", targets_BT.shape[axis])
    device = next(model.parameters()).device
    loss_BT = torch.zeros(tokens_BT.shape)
    predicted_BT = torch.full(tokens_BT.shape, IGNORE)
    cache = model.cache(len(tokens_BT), inference=inference)
    for first in range(0, tokens_BT.shape[1], chunk):
        piece = slice(first, first + chunk)
        keep = None if keep_BT is None or bool(keep_BT[:, piece].all()) else keep_BT[:, piece].to(device)
        x_BTD = model.hidden(tokens_BT[:, piece].to(device), keep=keep, cache=cache)
        asked_BT = targets_BT[:, piece] != IGNORE
        if not bool(asked_BT.any()):
            continue
        logits_XN = model.readout(x_BTD[asked_BT.to(device)]).float()
        wanted_X = targets_BT[:, piece][asked_BT].to(device)
        loss_BT[:, piece][asked_BT] = F.cross_entropy(logits_XN, wanted_X, reduction="none").cpu()
        predicted_BT[:, piece][asked_BT] = logits_XN.argmax(-1).cpu()
    return Read(loss_BT, predicted_BT)
