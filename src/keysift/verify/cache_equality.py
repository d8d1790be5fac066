"""Cache equality: logits computed with a cache equal those of one forward pass, for any division into calls."""

import torch

from keysift.core.errors import DisagreementError
from keysift.models.language_model import LanguageModel

ALLOWED = 2e-5  # relative to the largest logit: rounding in fp32


@torch.no_grad()
def check_cache(model: LanguageModel, chunks: tuple[int, ...], *, batch: int = 2) -> None:
    """Raise unless logits with a cache, `chunks` tokens per call, equal those of one forward pass up to rounding."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.randint(model.config.vocab_size, (batch, sum(chunks)), generator=random)
    full = model(tokens)
    cache = model.cache(batch)
    pieces = [model(piece, cache=cache) for piece in torch.split(tokens, list(chunks), dim=1)]
    error = float((torch.cat(pieces, dim=1) - full).abs().max() / full.abs().max())
    if not error <= ALLOWED:
        raise DisagreementError(
            f"logits with a cache are off by {error:.1e} of the largest logit, where {ALLOWED:.0e} is allowed; "
            f"run tests/models before timing this model"
        )
