"""Corpora on disk: splits, hashes, damaged files."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keysift.data import Bytes, Corpus, build, open_corpus
from keysift.data.corpus import INDEX, VERIFIED
from keysift.data.tokenizers import bpe
from tests.data.test_shards import source_of
from tests.refusals import refuses


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return build(
        source_of([f"document {i}\n" * (i % 5 + 1) for i in range(40)]), "bytes", tmp_path / "c", shard_tokens=700
    )


def documents(corpus: Corpus, part: str, val_fraction: float) -> list[str]:
    """Decode the documents of a split."""
    split = corpus.split(part, val_fraction)  # type: ignore[arg-type]
    text = [int(i) for i in split.read(0, split.tokens)]
    assert text.count(256) == split.documents
    assert len(text) - split.documents == split.text_bytes
    return bytes(0 if i == 256 else i for i in text).decode().split("\0")[:-1]


@settings(max_examples=40)
@given(
    texts=st.lists(st.text(alphabet="abc", min_size=1, max_size=9), min_size=2, max_size=40),
    val_fraction=st.floats(0.001, 0.999),
)
def test_splits_are_complete_and_disjoint_even_with_duplicates(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], val_fraction: float
) -> None:
    corpus = build(source_of(texts), "bytes", tmp_path_factory.mktemp("c") / "c", shard_tokens=16, show=False)
    if len(set(texts)) == 1:
        with refuses("holds one document or copies of one, which cannot"):
            corpus.split("val", val_fraction)
        return
    train, val = documents(corpus, "train", val_fraction), documents(corpus, "val", val_fraction)
    assert train
    assert val
    assert not set(train) & set(val)
    assert sorted(train + val) == sorted(texts)
    assert train == [text for text in texts if text in set(train)]
    hashes = {text: int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in texts}
    assert max(hashes[text] for text in val) < min(hashes[text] for text in train)


def test_a_larger_validation_fraction_only_adds_documents(corpus: Corpus) -> None:
    small, large = documents(corpus, "val", 0.1), documents(corpus, "val", 0.5)
    assert set(small) < set(large)
    assert 8 <= len(large) <= 32
    assert documents(corpus, "train", 0) == [f"document {i}\n" * (i % 5 + 1) for i in range(40)]


def test_read_any_range_of_a_split(corpus: Corpus) -> None:
    for part in ("train", "val"):
        split = corpus.split(part, 0.4)  # type: ignore[arg-type]
        whole = split.read(0, split.tokens)
        rng = np.random.default_rng(0)
        for start in rng.integers(0, split.tokens, 200).tolist():
            stop = min(split.tokens, start + int(rng.integers(1, 400)))
            assert np.array_equal(split.read(start, stop), whole[start:stop])


def test_hashes_identify_split_and_corpus(corpus: Corpus, tmp_path: Path) -> None:
    assert corpus.split("train", 0.1).hash == open_corpus(corpus.path).split("train", 0.1).hash
    assert corpus.split("train", 0.1).hash != corpus.split("train", 0.5).hash
    assert corpus.split("train", 0.1).hash != corpus.split("val", 0.1).hash
    other_corpus = build(source_of(["else", "more"]), "bytes", tmp_path / "other", show=False)
    assert other_corpus.index.hash != corpus.index.hash


def test_bytes_per_token(tmp_path: Path) -> None:
    corpus = build(source_of(["abc", "défg"]), "bytes", tmp_path / "c", show=False)
    assert corpus.split("train", 0).bytes_per_token == 8 / 10


def test_a_corrupt_shard_is_named_and_refused(corpus: Corpus) -> None:
    shard = corpus.path / "shard-00001.bin"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with refuses(r"shard-00001.bin is corrupt: its sha256 is \w{16}..., expected"):
        open_corpus(corpus.path)
    open_corpus(corpus.path, verify="sizes")


def test_damage_with_an_old_modification_time_is_found_by_always(corpus: Corpus) -> None:
    open_corpus(corpus.path)
    shard = corpus.path / "shard-00000.bin"
    state = shard.stat()
    data = bytearray(shard.read_bytes())
    data[0] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(state.st_atime_ns, state.st_mtime_ns))
    open_corpus(corpus.path, verify="once")
    with refuses("shard-00000.bin is corrupt"):
        open_corpus(corpus.path, verify="always")


def test_hashes_are_verified_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("hashed again")

    monkeypatch.setattr("keysift.data.corpus._check_hash", fail)
    open_corpus(corpus.path)
    (corpus.path / VERIFIED).write_text("nonsense")
    with pytest.raises(pytest.fail.Exception):
        open_corpus(corpus.path)


def test_an_invalid_verification_record_is_ignored(corpus: Corpus) -> None:
    for nonsense in ("nonsense", "[]", json.dumps({"hash": corpus.index.hash, "stamps": []})):
        (corpus.path / VERIFIED).write_text(nonsense)
        assert open_corpus(corpus.path).index == corpus.index


def test_a_read_only_corpus_is_verified_each_time(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus.path / VERIFIED).unlink()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(PermissionError))
    open_corpus(corpus.path)
    assert not (corpus.path / VERIFIED).exists()


def test_missing_truncated_and_changed_files(corpus: Corpus) -> None:
    table = corpus.path / "documents.bin"
    data = table.read_bytes()
    table.write_bytes(data[:-1])
    with refuses("documents.bin has 959 bytes, expected 960"):
        open_corpus(corpus.path)
    table.write_bytes(data[:-1] + b"\0")
    with refuses("documents.bin is corrupt"):
        open_corpus(corpus.path)
    table.unlink()
    with refuses("documents.bin is missing"):
        open_corpus(corpus.path, verify="sizes")


def test_a_damaged_index(corpus: Corpus) -> None:
    path = corpus.path / INDEX
    good = json.loads(path.read_text())
    path.write_text(json.dumps({**good, "tokens": good["tokens"] - 1}))
    with refuses("index.json was changed: it does not match its own sha256"):
        open_corpus(corpus.path)
    for damage in ("{", "[]", "{}", "3"):
        path.write_text(damage)
        with refuses("index.json is damaged"):
            open_corpus(corpus.path)
    later = {"format": 2}
    digest = hashlib.sha256(json.dumps(later, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({**later, "sha256": digest}))
    with refuses("index.json has format 2, this version reads 1"):
        open_corpus(corpus.path)
    path.unlink()
    with refuses("is not a corpus: it has no index.json"):
        open_corpus(corpus.path)


def test_a_replaced_tokenizer_is_refused(corpus: Corpus) -> None:
    assert corpus.tokenizer == Bytes()
    (corpus.path / "keysift_tokenizer.json").unlink()
    bpe.train(["other"], vocab_size=258).save(corpus.path)
    with refuses("is not the one the corpus was built with"):
        _ = corpus.tokenizer


def test_refusals(corpus: Corpus) -> None:
    for val_fraction in (-0.1, 1.0):
        with refuses("val_fraction is a fraction of the documents, at least 0 and below 1"):
            corpus.split("train", val_fraction)
    with refuses("val_fraction=0 leaves no validation set"):
        corpus.split("val", 0)
    split = corpus.split("train", 0)
    for start, stop in ((-1, 2), (2, 2), (0, split.tokens + 1)):
        with refuses(f"has tokens 0 to {split.tokens}, got a range from {start} to {stop}"):
            split.read(start, stop)


@pytest.mark.parametrize(
    "changes",
    [
        {"shard_tokens": 0},
        {"shard_tokens": -1},
        {"shard_tokens": 5},
        {"files": []},
        {"tokens": 10**15},
        {"documents": 0},
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_its_files_is_refused(corpus: Corpus, changes: dict[str, Any]) -> None:
    """Also if its own hash is right."""
    data = json.loads((corpus.path / INDEX).read_text()) | changes
    del data["sha256"]
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    (corpus.path / INDEX).write_text(json.dumps({**data, "sha256": digest}))
    with refuses(r"index.json lists \d+ files that do not fit"):
        open_corpus(corpus.path)


def test_a_table_of_documents_that_does_not_cover_the_tokens_is_refused(corpus: Corpus) -> None:
    for change in (lambda ends: ends[::-1], lambda ends: ends - 1, lambda ends: ends * 0):
        table = np.array(corpus.table)
        table["end"] = change(table["end"])
        broken = Corpus(corpus.path, corpus.index)
        broken.table = table
        with refuses("documents.bin does not divide"):
            broken.split("train")
