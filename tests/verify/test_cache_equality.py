"""The check that cached decoding equals the forward pass."""

import pytest

from keysift.core.errors import DisagreementError
from keysift.models.multiscreen import MultiscreenConfig
from keysift.nn.layer_cache import LayerCache
from keysift.verify.cache_equality import check_cache
from tests.models.checks import perturbed_multiscreen
from tests.refusals import refuses


def test_a_wrong_cache_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perturbed_multiscreen(MultiscreenConfig.psi(2, vocab_size=17))
    check_cache(model, (5, 3, 1, 1))
    put = LayerCache._put
    # Added, not scaled: screening uses only the direction of a value.
    monkeypatch.setattr(LayerCache, "_put", lambda self, new, write: put(self, {**new, "v": new["v"] + 1e-3}, write))
    with refuses("logits with a cache are off by .* run tests/models before timing this model", DisagreementError):
        check_cache(model, (5, 3, 1, 1))
