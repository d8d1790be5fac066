"""Packed documents are read as if each stood alone."""

import pytest
import torch

from keysift.models.language import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from keysift.nn import read
from tests.refusals import refuses

LENGTHS = (5, 1, 6)
DOCUMENTS = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))[None]


def models() -> list[LanguageModel]:
    generator = torch.Generator().manual_seed(0)
    return [
        Multiscreen(MultiscreenConfig.psi(3, vocab_size=11), generator),
        Transformer(TransformerConfig(vocab_size=11, depth=2, heads=2, width=8, context=12), generator),
    ]


@pytest.mark.parametrize("model", models(), ids=lambda model: type(model).__name__)
@torch.no_grad()
def test_each_document_is_alone(model: LanguageModel) -> None:
    for parameter in model.parameters():
        parameter.mul_(4.0)  # wide open: at their initial values the tiles accept little
    tokens = torch.randint(0, 11, (1, 12), generator=torch.Generator().manual_seed(1))
    packed = model(tokens, documents=DOCUMENTS)
    alone = torch.cat([model(part) for part in tokens.split(LENGTHS, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(packed, model(tokens), atol=1e-3), "without isolation they differ"


def test_documents_are_for_training() -> None:
    model = models()[0]
    with refuses("documents are packed rows for training"):
        model(DOCUMENTS, documents=DOCUMENTS, start=3)


@pytest.mark.parametrize(
    "name", ["screening", "softmax", "differential_v1", "selective_temperature", "softmax+value_gate"]
)
def test_cut_apart_is_masked_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no scalar follows the tokens, documents are read one by one; else all at once behind a mask. Both agree,
    in value and in every gradient, also with rows cut at different places and fewer key heads."""
    config = TransformerConfig(vocab_size=11, depth=2, heads=4, key_heads=2, width=16, context=12, mechanism=name)
    model = Transformer(config, torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(1))
    documents = torch.stack([DOCUMENTS[0], torch.tensor([0] * 3 + [4] * 9)])

    def answers() -> list[torch.Tensor]:
        logits = model(tokens, documents=documents)
        return [logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()), allow_unused=True)]

    ours = answers()
    monkeypatch.setattr(read, "_follows_tokens", lambda mechanism: True)
    for one, other in zip(ours, answers(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
