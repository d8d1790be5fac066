"""Packed documents and padded rows are read as if each stood alone."""

import dataclasses

import pytest
import torch
from torch import Tensor

from keysift.kernels.attend import only
from keysift.kernels.positions import Positions
from keysift.mechanisms import MECHANISMS
from keysift.models.language import LanguageModel
from keysift.models.multiscreen import Multiscreen, MultiscreenConfig
from keysift.models.transformer import Transformer, TransformerConfig
from tests.machine import needs_kernel
from tests.models.checks import opened
from tests.refusals import refuses
from tests.representatives import few_at_once

LENGTHS = [[5, 1, 6], [3, 9]]
PACKED = Positions.packed(LENGTHS)
CONFIG = TransformerConfig(vocab_size=11, depth=2, heads=4, width=16, context=12)
NAMES = [*MECHANISMS.names(), "screening+value_gate", "differential_v1+value_gate", "sigmoid+output_head_gate"]


def shaken(config: TransformerConfig) -> Transformer:
    generator = torch.Generator().manual_seed(0)
    model = Transformer(config, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def tokens() -> Tensor:
    return torch.randint(0, 11, (2, 12), generator=torch.Generator().manual_seed(1))


def gradients(model: LanguageModel, *logits: Tensor) -> list[Tensor]:
    loss = sum((x.square().sum() for x in logits), torch.zeros(()))
    return list(torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True))


def each_alone(model: LanguageModel, text: Tensor) -> list[Tensor]:
    """Documents one by one, a row at a time."""
    cut = [part for row, lengths in zip(text, LENGTHS, strict=True) for part in row.split(lengths)]
    return [model(part[None]) for part in cut]


def check(model: LanguageModel) -> None:
    """In value and in every gradient; and documents that saw each other would answer otherwise."""
    packed, alone = model(tokens(), positions=PACKED), each_alone(model, tokens())
    torch.testing.assert_close(packed.flatten(0, 1), torch.cat(alone, 1)[0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(packed, model(tokens()), atol=1e-3), "without isolation they differ"
    ours, theirs = gradients(model, packed), gradients(model, *alone)
    for (name, _), one, other in zip(model.named_parameters(), ours, theirs, strict=True):
        size = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(one / size, other / size, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", few_at_once(NAMES))
def test_each_document_is_alone_under_every_mechanism(name: str) -> None:
    check(shaken(dataclasses.replace(CONFIG, mechanism=name)))


def test_with_shared_key_heads() -> None:
    check(shaken(dataclasses.replace(CONFIG, mechanism=("screening", "softmax"), key_heads=2)))


@needs_kernel
def test_a_multiscreen_reads_them_in_the_compiled_kernel() -> None:
    model = opened(dataclasses.replace(MultiscreenConfig.psi(3, vocab_size=11), key_width=4, value_width=3))
    with only("screening_cpu"):
        check(model)
        padded = model(tokens(), keep=torch.arange(12) >= torch.tensor([[4], [0]]))
    torch.testing.assert_close(padded[0, 4:], model(tokens()[:1, 4:])[0], atol=1e-5, rtol=1e-5)


@needs_kernel
@pytest.mark.slow
def test_a_compiled_model_reads_them_in_the_compiled_kernel() -> None:
    """In one graph, without a look at the positions, and without another graph for other documents."""
    model = Multiscreen(MultiscreenConfig.psi(2, vocab_size=11), torch.Generator().manual_seed(0))
    called: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        called.extend(str(node.target) for node in graph.graph.nodes if "keysift.screening" in str(node.target))
        return graph

    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for lengths in (LENGTHS, [[2, 2, 2, 6], [12]], [[7, 5], [1, 1, 1]], [[3, 3, 3], [4, 4]], [[6, 6], [6, 6]]):
        positions = Positions.packed(lengths, 12)
        ours, theirs = (read(tokens(), positions=positions) for read in (compiled, model))
        torch.testing.assert_close(ours, theirs)
        for one, other in zip(gradients(model, ours), gradients(model, theirs), strict=True):
            torch.testing.assert_close(one, other)
    assert len(called) <= 2 * len(model.layers), "at most one graph more, for any number of documents"


def test_padding_after_the_documents_is_nobodys() -> None:
    model = shaken(dataclasses.replace(CONFIG, mechanism="softmax"))
    positions = Positions.packed([[5], [12]], 12)
    changed = tokens()
    changed[0, 5:] = (changed[0, 5:] + 1) % 11
    one, two = (model(text, positions=positions) for text in (tokens(), changed))
    assert torch.equal(one[0, :5], two[0, :5])
    assert torch.equal(one[1], two[1])
    torch.testing.assert_close(one[0, :5], model(tokens()[:1, :5])[0], atol=1e-5, rtol=1e-5)


def test_refusals() -> None:
    model = shaken(CONFIG)
    with refuses("positions say already who takes part"):
        model(tokens(), positions=PACKED, keep=torch.ones(2, 12, dtype=torch.bool))
    with refuses("positions must agree in number of queries, got 12 and 9"):
        model(tokens(), positions=Positions.packed([[9], [9]]))
    with refuses("positions.at must broadcast to B H T = 2x1x12, got 3x1x12"):
        model(tokens(), positions=Positions.packed([[12], [12], [12]]))
    for lengths in ([[5, 0, 7]], [[13]], [[-1, 13]]):
        with refuses(r"at least one token and must fit in a row of 12, got lengths"):
            Positions.packed(lengths, 12)
    for padding, start in (([13, 0], 0), ([-1, 0], 0), ([0, 0], [1, 2, 3])):
        with refuses("rows of 12 hold 0 to 12 tokens of padding and need one start each"):
            Positions.padded(padding, 12, start=start)
    for at in (torch.rand(3), torch.zeros(1, 1, 1, 3, dtype=torch.int64), torch.tensor(3)):
        with refuses("at must hold int64 positions, broadcastable to B H and its length"):
            Positions.explicit(at, torch.arange(3))
