import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keysift.data import Bytes, Corpus, bpe, build, open_corpus
from keysift.data.corpus import INDEX, VERIFIED
from tests.data.test_shards import of
from tests.refusals import refuses


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return build(of([f"document {i}\n" * (i % 5 + 1) for i in range(40)]), "bytes", tmp_path / "c", shard_tokens=700)


def documents(corpus: Corpus, part: str, share: float) -> list[str]:
    split = corpus.split(part, share)  # type: ignore[arg-type]
    text = [int(i) for i in split.read(0, split.tokens)]
    assert text.count(256) == split.documents
    assert len(text) - split.documents == split.text_bytes
    return bytes(0 if i == 256 else i for i in text).decode().split("\0")[:-1]


@settings(max_examples=40)
@given(
    texts=st.lists(st.text(alphabet="abc", min_size=1, max_size=9), min_size=2, max_size=40),
    share=st.floats(0.001, 0.999),
)
def test_the_split_is_whole_disjoint_and_blind_to_copies(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], share: float
) -> None:
    corpus = build(of(texts), "bytes", tmp_path_factory.mktemp("c") / "c", shard_tokens=16, show=False)
    if len(set(texts)) == 1:
        with refuses("holds one document, which cannot be split"):
            corpus.split("val", share)
        return
    train, val = documents(corpus, "train", share), documents(corpus, "val", share)
    assert train
    assert val
    assert not set(train) & set(val)
    assert sorted(train + val) == sorted(texts)
    assert train == [text for text in texts if text in set(train)]
    hashes = {text: int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") for text in texts}
    assert max(hashes[text] for text in val) < min(hashes[text] for text in train)


def test_a_larger_share_only_adds(corpus: Corpus) -> None:
    small, large = documents(corpus, "val", 0.1), documents(corpus, "val", 0.5)
    assert set(small) < set(large)
    assert 8 <= len(large) <= 32
    assert documents(corpus, "train", 0) == [f"document {i}\n" * (i % 5 + 1) for i in range(40)]


def test_any_stretch_of_a_split(corpus: Corpus) -> None:
    for part in ("train", "val"):
        split = corpus.split(part, 0.4)  # type: ignore[arg-type]
        whole = split.read(0, split.tokens)
        rng = np.random.default_rng(0)
        for start in rng.integers(0, split.tokens, 200).tolist():
            stop = min(split.tokens, start + int(rng.integers(1, 400)))
            assert np.array_equal(split.read(start, stop), whole[start:stop])


def test_hashes_tell_what_is_read(corpus: Corpus, tmp_path: Path) -> None:
    assert corpus.split("train", 0.1).hash == open_corpus(corpus.path).split("train", 0.1).hash
    assert corpus.split("train", 0.1).hash != corpus.split("train", 0.5).hash
    assert corpus.split("train", 0.1).hash != corpus.split("val", 0.1).hash
    other = build(of(["else", "more"]), "bytes", tmp_path / "other", show=False)
    assert other.index.hash != corpus.index.hash


def test_bytes_per_token(tmp_path: Path) -> None:
    corpus = build(of(["abc", "défg"]), "bytes", tmp_path / "c", show=False)
    assert corpus.split("train", 0).bytes_per_token == 8 / 10


def test_a_corrupt_shard_is_named_and_refused(corpus: Corpus) -> None:
    shard = corpus.path / "shard-00001.bin"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with refuses(r"shard-00001.bin is corrupt: its sha256 is \w{16}..., expected"):
        open_corpus(corpus.path)
    open_corpus(corpus.path, verify="sizes")


def test_damage_that_keeps_the_time_of_change_is_found_by_always(corpus: Corpus) -> None:
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


def test_hashes_are_compared_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail("hashed again")

    monkeypatch.setattr("keysift.data.corpus._check_hash", fail)
    open_corpus(corpus.path)
    (corpus.path / VERIFIED).write_text("nonsense")
    with pytest.raises(pytest.fail.Exception):
        open_corpus(corpus.path)


def test_what_is_remembered_may_be_nonsense(corpus: Corpus) -> None:
    for nonsense in ("nonsense", "[]", json.dumps({"hash": corpus.index.hash, "stamps": []})):
        (corpus.path / VERIFIED).write_text(nonsense)
        assert open_corpus(corpus.path).index == corpus.index


def test_a_folder_that_cannot_remember_is_checked_each_time(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus.path / VERIFIED).unlink()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(PermissionError))
    open_corpus(corpus.path)
    assert not (corpus.path / VERIFIED).exists()


def test_missing_short_and_changed_files(corpus: Corpus) -> None:
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


def test_the_tokenizer_is_the_one_it_was_made_with(corpus: Corpus) -> None:
    assert corpus.tokenizer == Bytes()
    (corpus.path / "keysift_tokenizer.json").unlink()
    bpe.train(["other"], vocab_size=258).save(corpus.path)
    with refuses("is not the one the corpus was made with"):
        _ = corpus.tokenizer


def test_refusals(corpus: Corpus) -> None:
    for share in (-0.1, 1.0):
        with refuses("val_fraction is a share of the documents, at least 0 and below 1"):
            corpus.split("train", share)
    with refuses("val_fraction=0 leaves no validation set"):
        corpus.split("val", 0)
    split = corpus.split("train", 0)
    for start, stop in ((-1, 2), (2, 2), (0, split.tokens + 1)):
        with refuses(f"has tokens 0 to {split.tokens}, got a reading from {start} to {stop}"):
            split.read(start, stop)
