"""Packed documents are read as if each stood alone."""

import pytest
import torch

from keysift.models.language import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
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
