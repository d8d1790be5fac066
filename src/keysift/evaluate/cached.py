"""A cache gives the logits of the full forward, however the text is cut into calls; a model that fails is not timed."""

import torch

from keysift.core.errors import DisagreementError
from keysift.models.language import LanguageModel

ALLOWED = 2e-5  # of the largest logit: rounding in fp32


@torch.no_grad()
def check_cache(model: LanguageModel, chunks: tuple[int, ...], *, batch: int = 2) -> None:
    """Raise unless logits through a cache, `chunks` tokens a call, equal those of one forward up to rounding."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.config.vocab_size, (batch, sum(chunks)), generator=random)
    full = model(tokens)
    cache = model.cache(batch)
    pieces = [model(piece, cache=cache) for piece in torch.split(tokens, list(chunks), dim=1)]
    error = float((torch.cat(pieces, dim=1) - full).abs().max() / full.abs().max())
    if not error <= ALLOWED:
        raise DisagreementError(
            f"logits through the cache are off by {error:.1e} of the largest, where {ALLOWED:.0e} is allowed; "
            f"a wrong answer is not timed: run the tests of models/"
        )
