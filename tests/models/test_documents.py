"""Packed documents and padded rows give the same result as a forward pass for each document."""

import dataclasses

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import force_backend
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS
from keysift.models.language_model import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import TransformerConfig
from tests.machine import needs_kernel
from tests.models.checks import perturbed_multiscreen, perturbed_transformer
from tests.refusals import refuses
from tests.representatives import slow_unless_representative

LENGTHS = [[5, 1, 6], [3, 9]]
PACKED = Positions.packed(LENGTHS)
CONFIG = TransformerConfig(vocab_size=11, depth=2, heads=4, width=16, context=12)
NAMES = [*MECHANISMS.names(), "screening+value_gate", "differential_v1+value_gate", "sigmoid+output_head_gate"]


def tokens() -> Tensor:
    return torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(1))


def gradients(model: LanguageModel, *logits: Tensor) -> list[Tensor]:
    loss = sum((x.square().sum() for x in logits), torch.zeros(()))
    return list(torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True))


def separate_passes(model: LanguageModel, text: Tensor) -> list[Tensor]:
    """Logits of each document in its own forward pass."""
    documents = [part for row, lengths in zip(text, LENGTHS, strict=True) for part in row.split(lengths)]
    return [model(document[None]) for document in documents]


def check(model: LanguageModel) -> None:
    """Packing equals separate passes in value and every gradient, and without isolation the logits differ."""
    packed, separate = model(tokens(), positions=PACKED), separate_passes(model, tokens())
    torch.testing.assert_close(packed.flatten(0, 1), torch.cat(separate, 1)[0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(packed, model(tokens()), atol=1e-3), "without isolation the logits differ"
    actual, expected = gradients(model, packed), gradients(model, *separate)
    for (name, _), a, b in zip(model.named_parameters(), actual, expected, strict=True):
        size = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a / size, b / size, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", slow_unless_representative(NAMES))
def test_documents_are_isolated_with_every_mechanism(name: str) -> None:
    check(perturbed_transformer(dataclasses.replace(CONFIG, mechanism=name)))


def test_documents_are_isolated_with_shared_key_heads() -> None:
    check(perturbed_transformer(dataclasses.replace(CONFIG, mechanism=("screening", "softmax"), key_heads=2)))


@needs_kernel
def test_packed_documents_in_the_compiled_kernel() -> None:
    model = perturbed_multiscreen(
        dataclasses.replace(MultiscreenConfig.psi(3, vocab_size=11), key_width=4, value_width=3)
    )
    with force_backend("screening_cpu"):
        check(model)
        padded = model(tokens(), keep=torch.arange(12) >= torch.tensor([[4], [0]]))
    torch.testing.assert_close(padded[0, 4:], model(tokens()[:1, 4:])[0], atol=1e-5, rtol=1e-5)


@needs_kernel
@pytest.mark.slow
def test_packed_documents_under_torch_compile() -> None:
    """The model is one graph that calls the compiled kernel, and new document lengths cause no new graph."""
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11), torch.Generator().manual_seed(0))
    called: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        called.extend(str(node.target) for node in graph.graph.nodes if "keysift.screening" in str(node.target))
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for lengths in (LENGTHS, [[2, 2, 2, 6], [12]], [[7, 5], [1, 1, 1]], [[3, 3, 3], [4, 4]], [[6, 6], [6, 6]]):
        positions = Positions.packed(lengths, 12)
        actual, expected = (call(tokens(), positions=positions) for call in (compiled, model))
        torch.testing.assert_close(actual, expected)
        for a, b in zip(gradients(model, actual), gradients(model, expected), strict=True):
            torch.testing.assert_close(a, b)
    assert len(called) <= 2 * len(model.layers), "at most one recompilation, for any number of documents"


def test_padding_after_the_documents_is_masked() -> None:
    model = perturbed_transformer(dataclasses.replace(CONFIG, mechanism="softmax"))
    positions = Positions.packed([[5], [12]], 12)
    changed = tokens()
    changed[0, 5:] = (changed[0, 5:] + 1) % 11
    before, after = (model(text, positions=positions) for text in (tokens(), changed))
    assert torch.equal(before[0, :5], after[0, :5])
    assert torch.equal(before[1], after[1])
    torch.testing.assert_close(before[0, :5], model(tokens()[:1, :5])[0], atol=1e-5, rtol=1e-5)


def test_invalid_positions_are_refused() -> None:
    model = perturbed_transformer(CONFIG)
    with refuses("positions already include the padding mask"):
        model(tokens(), positions=PACKED, keep=torch.ones(2, 12, dtype=torch.bool))
    with refuses("positions must agree in number of queries, got 12 and 9"):
        model(tokens(), positions=Positions.packed([[9], [9]]))
    with refuses("positions.at must broadcast to B H T = 2x1x12, got 3x1x12"):
        model(tokens(), positions=Positions.packed([[12], [12], [12]]))
    for lengths in ([[5, 0, 7]], [[13]], [[-1, 13]]):
        with refuses(r"at least one token and fit in a row of 12, got lengths"):
            Positions.packed(lengths, 12)
    for padding, start in (([13, 0], 0), ([-1, 0], 0), ([0, 0], [1, 2, 3])):
        with refuses("rows of 12 hold 0 to 12 tokens of padding and need one start each"):
            Positions.padded(padding, 12, start=start)
    for at in (torch.rand(3), torch.zeros(1, 1, 1, 3, dtype=torch.int64), torch.tensor(3)):
        with refuses("at must hold int64 positions, broadcastable to B H and its length"):
            Positions.explicit(at, torch.arange(3))
