"""Batches: order, resuming by step, parts, isolated documents, whole documents."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import keysift
from keysift.data import Batches, build
from keysift.data.batches import Batch
from keysift.data.corpus import Split
from keysift.data.order import permute
from tests.data.test_shards import source_of
from tests.refusals import refuses

T = 16


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    texts = [chr(97 + i % 26) * (1 + 7 * i % 45) for i in range(60)]
    return build(source_of(texts), "bytes", tmp_path_factory.mktemp("c") / "c", show=False).split("train", 0.1)


@given(st.integers(1, 3000), st.text(max_size=4))
def test_the_order_is_a_permutation(n: int, key: str) -> None:
    assert sorted(permute(np.arange(n), n, key).tolist()) == list(range(n))


@given(st.integers(1, 2**60), st.integers(0, 2**60), st.text(max_size=4))
def test_a_position_is_computed_alone_at_any_size(n: int, number: int, key: str) -> None:
    number %= n
    permuted = permute(np.array([0, number, n - 1]), n, key)
    assert permute(np.array([number]), n, key)[0] == permuted[1]
    assert ((permuted >= 0) & (permuted < n)).all()


def test_the_order_is_mixed_and_depends_on_the_key() -> None:
    n = 10_000
    first, second = permute(np.arange(n), n, "first"), permute(np.arange(n), n, "second")
    assert (first == second).sum() < 10
    assert (first == np.arange(n)).sum() < 10
    assert abs(np.corrcoef(np.arange(n), first)[0, 1]) < 0.05
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.05
    # Every tenth of the numbers contributes about a tenth of the first tenth of the order.
    counts = np.bincount(first[: n // 10] * 10 // n, minlength=10)
    assert counts.min() > 60
    assert counts.max() < 140


def test_an_epoch_reads_every_sequence_once(split: Split) -> None:
    batches = Batches(split, context=T, batch_size=1, seed=3)
    assert batches.sequences == (split.tokens - 1) // T
    epochs = [
        [batches.batch(epoch * batches.sequences + i).rows[0] for i in range(batches.sequences)] for epoch in range(2)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(batches.sequences))
    assert epochs[0] != epochs[1]


def test_batches_contain_the_tokens_of_the_split(split: Split) -> None:
    whole = split.read(0, split.tokens).astype(np.int64)
    batch = Batches(split, context=T, batch_size=5, seed=1).batch(2)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.positions is None
    for row, inputs, targets in zip(batch.rows, batch.inputs, batch.targets, strict=True):
        assert inputs.tolist() == whole[row * T : row * T + T].tolist()
        assert targets.tolist() == whole[row * T + 1 : row * T + T + 1].tolist()


@settings(max_examples=30)
@given(step=st.integers(0, 10**6), seed=st.integers(0, 99))
def test_the_step_alone_determines_a_batch(split: Split, step: int, seed: int) -> None:
    first = Batches(split, context=T, batch_size=4, seed=seed)
    for earlier_step in range(3):
        first.batch(earlier_step)
    resumed = Batches(split, context=T, batch_size=4, seed=seed).batch(step)
    assert torch.equal(first.batch(step).inputs, resumed.inputs)
    assert first.batch(step).rows == resumed.rows


@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_parts_concatenate_to_the_batch(split: Split, parts: int) -> None:
    batches = Batches(split, context=T, batch_size=6, seed=5, isolate=True)
    whole = batches.batch(7)
    pieces = [batches.batch(7, part, parts) for part in range(parts)]
    assert torch.equal(torch.cat([piece.inputs for piece in pieces]), whole.inputs)
    assert torch.equal(torch.cat([piece.targets for piece in pieces]), whole.targets)
    assert sum((piece.rows for piece in pieces), ()) == whole.rows


def test_sequences_are_in_order_without_shuffling(split: Split) -> None:
    batches = Batches(split, context=T, batch_size=4, shuffle=False)
    assert batches.batch(1).rows == (4, 5, 6, 7)


def test_every_option_changes_the_stream_hash(split: Split) -> None:
    def stream(split: Split = split, *, context: int = T, **options: int) -> str:
        return Batches(split, context=context, batch_size=2, **options).stream_hash  # type: ignore[arg-type]

    hashes = [stream(), stream(seed=1), stream(context=8), stream(isolate=True), stream(shuffle=False)]
    hashes += [stream(context=64), stream(context=64, whole=True), stream(split.corpus.split("val", 0.1))]
    assert len(set(hashes)) == len(hashes)
    assert Batches(split, context=T, batch_size=4).stream_hash == stream()


def same_document_mask(batch: Batch) -> torch.Tensor:
    """B T T mask: whether query and key are in the same document."""
    assert batch.positions is not None
    same_document = batch.positions.same_document(slice(None), slice(None))
    assert same_document is not None
    return same_document[:, 0]


def test_a_small_batch_with_isolated_documents(tmp_path: Path) -> None:
    corpus = build(source_of(["ab", "c", "defghi"]), "bytes", tmp_path / "c", show=False)
    batches = Batches(corpus.split("train", 0), context=5, batch_size=2, shuffle=False, isolate=True)
    batch = batches.batch(0)
    a, b, c, d, e, f, g, h, i = range(97, 106)
    end, ignored = 256, -100
    assert batch.inputs.tolist() == [[a, b, end, c, end], [d, e, f, g, h]]
    assert batch.targets.tolist() == [[b, end, ignored, end, ignored], [e, f, g, h, i]]
    assert batch.positions is not None
    assert batch.positions.at is not None
    assert batch.positions.at[:, 0].tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]
    assert same_document_mask(batch)[0].int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1],
    ]


def test_document_mask_and_positions_match_the_tokens(split: Split) -> None:
    batches = Batches(split, context=T, batch_size=sequences_in(split), shuffle=False, isolate=True)
    batch = batches.batch(0)
    assert batch.positions is not None
    assert batch.positions.at is not None
    for inputs, mask, positions in zip(batch.inputs, same_document_mask(batch), batch.positions.at[:, 0], strict=True):
        begin = 0
        for t in range(T):
            assert int(positions[t]) == t - begin
            end = next((x for x in range(t, T) if inputs[x] == 256), T - 1)
            assert mask[t].nonzero().flatten().tolist() == list(range(begin, end + 1))
            if inputs[t] == 256:
                begin = t + 1


def sequences_in(split: Split) -> int:
    return (split.tokens - 1) // T


def test_no_attention_across_documents(split: Split) -> None:
    """A change to one document changes no output of another, unless the positions are left out."""
    batch = Batches(split, context=T, batch_size=8, seed=2, isolate=True).batch(0)
    row = int((~same_document_mask(batch)[:, 0]).sum(1).argmax())
    other_document = ~same_document_mask(batch)[row, 0]
    assert other_document.any()
    x = torch.randn(8, 1, T, 4, dtype=torch.float64)
    changed = x.clone()
    changed[row, :, ~other_document] += 1
    for positions, same in ((batch.positions, True), (None, False)):
        original_output = keysift.attend("softmax", x, x, x, positions=positions)
        changed_output = keysift.attend("softmax", changed, changed, changed, positions=positions)
        assert torch.equal(original_output[row, 0, other_document], changed_output[row, 0, other_document]) == same


def test_a_small_batch_of_whole_documents(tmp_path: Path) -> None:
    """Documents of 2, 3, 1, 4 and 2 letters, each with an end token, packed into rows of 6 inputs."""
    corpus = build(source_of(["ab", "cde", "f", "ghij", "kl"]), "bytes", tmp_path / "c", show=False)
    batches = Batches(corpus.split("train", 0), context=6, batch_size=3, shuffle=False, whole=True, isolate=True)
    assert batches.sequences == 3
    batch = batches.batch(0)

    def render(row: list[int]) -> str:
        return "".join("_" if token == -100 else "." if token == 256 else chr(token) for token in row)

    assert [render(row) for row in batch.inputs.tolist()] == ["ab.cde", "f.ghij", "kl...."]
    assert [render(row) for row in batch.targets.tolist()] == ["b._de.", "._hij.", "l.____"]
    assert batch.positions is not None
    assert batch.positions.segments is not None
    segments = [tuple(piece[:3]) for piece in batch.positions.segments.tolist()]
    assert segments == [(0, 0, 3), (0, 3, 3), (1, 0, 2), (1, 2, 4), (2, 0, 3)], "padding is not a document"
    assert not same_document_mask(batch)[2, 3:].any()
    assert not same_document_mask(batch)[2, :, 3:].any()
    with refuses("a document of 5 tokens, but whole documents must fit .* use a context of 4 or more"):
        Batches(corpus.split("train", 0), context=3, batch_size=1, whole=True)


@pytest.mark.parametrize("seed", [0, 1])
def test_whole_documents_are_all_read_and_never_split(tmp_path: Path, seed: int) -> None:
    texts = [chr(97 + i % 26) * (1 + 5 * i % 13) for i in range(50)]
    split = build(source_of(texts), "bytes", tmp_path / "c", show=False).split("train", 0)
    batches = Batches(split, context=T, batch_size=1, seed=seed, whole=True)
    read = []
    for step in range(batches.sequences):
        batch = batches.batch(step)
        row = [*batch.inputs[0].tolist(), 256]
        read += [bytes(part).decode() for part in split_documents(row)]
    assert sorted(read) == sorted(texts)


def split_documents(row: list[int]) -> list[list[int]]:
    documents: list[list[int]] = [[]]
    for token in row:
        if token == 256:
            documents.append([])
        else:
            documents[-1].append(token)
    return [part for part in documents if part]


def test_a_batch_moves_to_a_device(split: Split) -> None:
    batch = Batches(split, context=T, batch_size=2, isolate=True).batch(0).to("meta")
    assert batch.positions is not None
    moved = (batch.inputs, batch.targets, batch.positions.at, batch.positions.document, batch.positions.key_document)
    assert {tensor.device.type for tensor in moved if tensor is not None} == {"meta"}
    assert batch.positions.segments is not None
    assert batch.positions.segments.device.type == "cpu"
    assert Batches(split, context=T, batch_size=2).batch(0).to("cpu").positions is None


def test_refusals(split: Split) -> None:
    for context, batch_size in ((0, 1), (1, 0)):
        with refuses(f"must be at least 1, got {context} and {batch_size}"):
            Batches(split, context=context, batch_size=batch_size)
    with refuses(f"the train part of texts has {split.tokens} tokens, less than one sequence of {split.tokens}"):
        Batches(split, context=split.tokens, batch_size=1)
    batches = Batches(split, context=T, batch_size=6)
    with refuses("steps are counted from 0, got -1"):
        batches.batch(-1)
    with refuses("6 sequences cannot be divided into 4 equal parts"):
        batches.batch(0, 0, 4)
    with refuses("part must be from 0 to 1, got 2"):
        batches.batch(0, 2, 2)
