"""Loss by position: does a longer past help, and what happens beyond the training length?

From the middle of each long document a stretch of N + 1 tokens; the loss at context c is the mean over positions within
10% of c, its spread the standard error over documents.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from keysift.core.errors import DataError
from keysift.evaluate.measured import Point
from keysift.evaluate.reading import read
from keysift.models.language import LanguageModel
from keysift.nn.inference import Inference

Array = npt.NDArray[np.int64]
WITHIN = 0.1


def stretches(documents: Iterable[Array], length: int) -> list[Array]:
    """The middle `length` + 1 tokens of every document that has them."""
    found = []
    for ids in documents:
        spare = len(ids) - (length + 1)
        if spare >= 0:
            found.append(ids[spare // 2 : spare // 2 + length + 1])
    if not found:
        raise DataError(
            f"no document has the {length + 1} tokens that a context of {length} needs; "
            f"give longer documents or a shorter length"
        )
    return found


def losses_by_position(
    model: LanguageModel,
    rows: Sequence[Array],
    *,
    settings: dict[str, Inference],
    on_row: Callable[[str, int], None] = lambda setting, row: None,
) -> dict[str, npt.NDArray[np.float32]]:
    """Nats, documents x positions, for each setting. Rows are read one by one: they are long."""
    found = {}
    for setting, inference in settings.items():
        losses = []
        for number, ids in enumerate(rows):
            tokens = torch.from_numpy(ids.astype(np.int64))[None]
            losses.append(read(model, tokens[:, :-1], tokens[:, 1:], inference=inference).loss_BT[0].numpy())
            on_row(setting, number)
        found[setting] = np.stack(losses)
    return found


def points(losses: dict[str, npt.NDArray[np.float32]], contexts: Iterable[int]) -> list[Point]:
    found = []
    for setting, loss in losses.items():
        for context in contexts:
            # Position p has p + 1 tokens before its target; at least one position counts even at context 1.
            low, high = round(context * (1 - WITHIN)), round(context * (1 + WITHIN))
            near = loss[:, max(0, low - 1) : max(low, high)]
            if near.shape[1] == 0:
                continue
            means = near.astype(np.float64).mean(1)
            error = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
            found.append(
                Point(context=context, setting=setting, nats=float(means.mean()), error=error, documents=len(means))
            )
    return found
