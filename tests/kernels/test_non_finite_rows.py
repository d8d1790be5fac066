"""A row that sees NaN or inf, in its query or in a visible key or value, is NaN on every backend, cached or not."""

import math

import pytest
import torch

from keysift import trace
from keysift.core.errors import UnsupportedError
from keysift.kernels.attend import BACKENDS, attend, explain
from keysift.kernels.weigh import weigh
from keysift.mechanisms import MECHANISMS, find
from keysift.mechanisms.spec import Mechanism
from keysift.models.language_model import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn.decode_step import through_modules
from tests.machine import needs_kernel
from tests.representatives import slow_unless_representative

ALL = [*MECHANISMS, *map(find, ("screening+value_gate", "softmax+output_gate"))]
NON_FINITE = [math.nan, math.inf, -math.inf]
KEYS = 9
BAD = 3  # the token whose embedding is NaN


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all"])
@pytest.mark.parametrize("queries", [1, KEYS])
@pytest.mark.parametrize("mechanism", slow_unless_representative(ALL))
def test_every_backend(mechanism: Mechanism, queries: int, causal: bool) -> None:
    """One number of one head: the other heads, and rows before the key, stay as they are."""
    if mechanism.causal_only and not causal:
        return
    scalars = {} if mechanism.window_scalar is None else {mechanism.window_scalar: 100.0}
    generator = torch.Generator().manual_seed(1)
    clean = {
        "q": torch.randn(2, 2 * mechanism.maps, queries, 8, generator=generator),
        "k": torch.randn(2, 2 * mechanism.key_maps, KEYS, 8, generator=generator),
        "v": torch.randn(2, 2, KEYS, 8, generator=generator),
    }
    for backend in BACKENDS.names():
        try:
            explain(mechanism, *clean.values(), causal=causal, scalars=scalars, backend=backend)
        except UnsupportedError:
            continue
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                expected = attend(mechanism, *clean.values(), causal=causal, scalars=scalars, backend=backend)
                for name, what in [(name, what) for name in clean for what in NON_FINITE]:
                    x = {key: value.clone().requires_grad_(grad) for key, value in clean.items()}
                    with torch.no_grad():
                        x[name][0, 0, min(2, x[name].shape[2] - 1), 5] = what
                    out = attend(mechanism, *x.values(), causal=causal, scalars=scalars, backend=backend)
                    sees = torch.zeros(2, 2, queries, dtype=torch.bool)
                    position = torch.arange(KEYS - queries, KEYS)
                    own = torch.arange(queries) == min(2, queries - 1)
                    sees[0, 0] = (
                        own if name == "q" else (position >= 2 + (not mechanism.own_key)) | torch.tensor(not causal)
                    )
                    if mechanism.name == "rela":  # its norm is over all heads
                        sees |= sees.any(1, keepdim=True)
                    assert torch.equal(out.isnan().all(-1), sees), (backend, name, what)
                    torch.testing.assert_close(out[~sees], expected[~sees])


def diverged(mechanism: Mechanism | None) -> LanguageModel:
    """A small model with a NaN in one embedding; None: a Multiscreen."""
    generator = torch.Generator().manual_seed(0)
    if mechanism is None:
        model: LanguageModel = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11), generator)
    else:
        config = TransformerConfig(vocab_size=11, depth=1, heads=4, width=16, context=12, mechanism=mechanism.name)
        model = Transformer(config, generator)
    with torch.no_grad():
        next(model.parameters())[BAD] = math.nan
    return model


@pytest.mark.parametrize("mechanism", [*slow_unless_representative(MECHANISMS), pytest.param(None, id="multiscreen")])
def test_decoding_agrees_with_the_forward_pass(mechanism: Mechanism | None) -> None:
    """Rows that see the token are NaN, also steps later, and also if the mechanism gives it weight zero."""
    model = diverged(mechanism)
    tokens = torch.tensor([[1, 4, 2, BAD, 5, 6, 1, 0, 2, 7], [1, 4, 2, 8, 5, 6, 1, 0, 2, 7]])
    output = "layers.0.tiles.screened" if mechanism is None else "layers.0.attention.output"
    relevance = output.rsplit(".", 1)[0] + ".relevance"
    with torch.no_grad():
        with trace(model, output) as values:
            model(tokens)
        whole = values[output].isnan()
        assert torch.equal(whole.all(-1), whole.any(-1))
        assert whole[0, :, 3].all()
        assert not whole[1].any()
        if mechanism is not None and mechanism.window_scalar is None:
            assert whole[0, :, 3:].all()
        with trace(model, output, relevance) as values:
            model(tokens)
        assert torch.equal(values[output].isnan(), whole)
        for chunks in ((1,) * 10, (5, 1, 3, 1)):
            cache, seen = model.cache(2), []
            for part in tokens.split(chunks, dim=1):
                with trace(model, output) as values:
                    model(part, cache=cache)
                seen.append(values[output].isnan())
            assert torch.equal(torch.cat(seen, dim=2), whole), chunks


@needs_kernel
def test_a_rejected_value_in_a_compiled_graph() -> None:
    """The kernel checks values itself there. No key is accepted, and the window of the first tile is short."""
    x = dict(zip("qkv", torch.randn(3, 1, 2, 200, 16, generator=torch.Generator().manual_seed(0)), strict=True))
    scalars = {"window": torch.tensor([9.0, math.inf]), "acceptance": torch.tensor(1e-3)}
    compiled = torch.compile(lambda q, k, v: attend("screening", q, k, v, scalars=scalars), backend="aot_eager")
    for what in NON_FINITE:
        x["v"][:, :, 100] = 1.0
        x["v"][0, :, 100, 3] = what
        leaves = [value.clone().requires_grad_() for value in x.values()]
        out = compiled(*leaves)
        assert torch.equal(out.isnan(), attend("screening", *x.values(), scalars=scalars).isnan())
        assert out[0, 0, 100:109].isnan().all()
        assert out[0, 1, 100:].isnan().all()
        assert not out[0, 0, 109:].isnan().any()
        assert all(grad.isfinite().all() for grad in torch.autograd.grad(out[:, :, :100].square().sum(), leaves))


def test_cached_keys_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoding step reads only its own token for the check, not the whole cache."""
    read = 0
    whole_sum = torch.Tensor.sum

    def counted(self: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
        nonlocal read
        read = max(read, self.numel() if not args and not kwargs else 0)
        return whole_sum(self, *args, **kwargs)

    config = TransformerConfig(vocab_size=11, depth=1, heads=4, width=16, context=12)
    model = Transformer(config, torch.Generator().manual_seed(0))
    with torch.no_grad():
        cache = model.cache(1)
        model(torch.randint(0, 11, (1, 50)), cache=cache)
        monkeypatch.setattr(torch.Tensor, "sum", counted)
        with through_modules():
            model(torch.tensor([[3]]), cache=cache)
    assert 0 < read <= 16


def test_weigh_keeps_a_visible_nan() -> None:
    for mechanism in MECHANISMS:
        if mechanism.cosine_scores:
            continue
        w = weigh(mechanism, [[0.9, math.nan, 0.7, 0.1], [0.9, 0.3, 0.7, 0.1]], keep=[True, True, True, False])
        assert w[0, :3].isnan().all(), mechanism.name
        assert w[0, 3] == 0
        assert w[1].isfinite().all()


def test_a_whole_block_of_nan_keys() -> None:
    """torch's kernel skips blocks of 512 keys whose scores are all NaN; one query sees 1500 keys."""
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 1500, 8), torch.randn(1, 2, 1500, 8)
    expected = attend("softmax", q, k, v, backend="dense")
    with torch.no_grad():
        torch.testing.assert_close(attend("softmax", q, k, v, backend="sdpa"), expected)
        for block in (slice(0, 512), slice(512, 1024), slice(0, 1500)):
            for name, what in [(name, what) for name in "kv" for what in NON_FINITE]:
                x = {"k": k.clone(), "v": v.clone()}
                x[name][:, 0, block] = what
                out = attend("softmax", q, x["k"], x["v"], backend="sdpa")
                assert out[0, 0].isnan().all()
                torch.testing.assert_close(out[0, 1], expected[0, 1])
