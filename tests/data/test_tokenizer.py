"""Tokenizers: lossless encoding, training, saving and loading, refused files."""

import json
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers

from keysift.data import load_tokenizer, save_tokenizer
from keysift.data.tokenizers import bpe
from keysift.data.tokenizers.base import MARKER, Tokenizer, id_type
from keysift.data.tokenizers.bytes import Bytes
from keysift.data.tokenizers.load import find_tokenizer
from tests.refusals import refuses

TEXT = "def f(x):\n    return x  # naïve 🙂\n\n\nclass A:\n\tpass\n" * 40


@pytest.fixture(scope="module")
def trained() -> bpe.BPE:
    return bpe.train([TEXT, "print('hello world')\n" * 30], vocab_size=290)


def test_bytes_tokenizer() -> None:
    assert Bytes().encode("é!") == [0xC3, 0xA9, 0x21]
    assert Bytes().decode([0x68, 256, 0x69, 256]) == "hi"
    assert Bytes().decode([0xC3]) == "\ufffd"
    assert (Bytes().vocab_size, Bytes().end_id) == (257, 256)


@given(st.text())
def test_bytes_are_lossless(text: str) -> None:
    text = text.encode(errors="ignore").decode()
    assert Bytes().decode(Bytes().encode(text)) == text
    assert Bytes().encode_array(text).tolist() == Bytes().encode(text)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_bpe_is_lossless(text: str) -> None:
    assert _small().decode(_small().encode(text)) == text


def test_training_is_deterministic_and_ends_with_the_end_token(trained: bpe.BPE) -> None:
    retrained = bpe.train([TEXT, "print('hello world')\n" * 30], vocab_size=290)
    assert retrained.hash == trained.hash
    assert retrained.hash != bpe.train([TEXT], vocab_size=290).hash
    assert trained.vocab_size == 290
    assert trained.end_id == 289
    assert len(trained.encode(TEXT)) < len(Bytes().encode(TEXT))


def test_the_end_token_spelled_in_a_text_is_text(trained: bpe.BPE) -> None:
    for tokenizer in (trained, pickle.loads(pickle.dumps(trained))):
        ids = tokenizer.encode("a<|endoftext|>b")
        assert trained.end_id not in ids
        assert tokenizer.decode([*ids, trained.end_id]) == "a<|endoftext|>b"


@settings(max_examples=300)
@example(["a", "\n", "\n", "aaaa"])
@given(st.lists(st.sampled_from(["a", "\n", "\n\n", " ", "\t", "\r", "'s", "7", "é", "\u3000", "("]), min_size=5))
def test_splitting_a_long_document_changes_no_id(parts: list[str]) -> None:
    tokenizer = _small()
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe, "_PIECE_CHARACTERS", 2)
        assert tokenizer.encode_array(text).tolist() == tokenizer.encode(text)


def test_long_documents_are_split_only_if_safe(trained: bpe.BPE, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_PIECE_CHARACTERS", 8)
    assert len(list(bpe._pieces(TEXT))) > 5
    assert trained._splits_at_newlines
    joined = Engine(models.BPE())
    joined.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    joined.add_special_tokens(["</s>"])
    assert not bpe.BPE(joined, end="</s>", name="prefix")._splits_at_newlines


def test_save_and_load(trained: bpe.BPE, tmp_path: Path) -> None:
    tokenizer: Tokenizer
    for number, tokenizer in enumerate((trained, Bytes())):
        save_tokenizer(tokenizer, tmp_path / str(number))
        loaded = load_tokenizer(tmp_path / str(number))
        assert (loaded.hash, loaded.name, loaded.end_id, loaded.vocab_size) == (
            tokenizer.hash,
            tokenizer.name,
            tokenizer.end_id,
            tokenizer.vocab_size,
        )
        assert loaded.encode(TEXT) == tokenizer.encode(TEXT)
    assert load_tokenizer(tmp_path / "0" / "tokenizer.json").hash == trained.hash
    assert find_tokenizer(str(tmp_path / "0")).hash == trained.hash
    assert find_tokenizer("bytes") == Bytes()


@pytest.mark.parametrize("names", bpe.PAIRS)
def test_the_two_files_of_gpt2(trained: bpe.BPE, tmp_path: Path, names: tuple[str, str]) -> None:
    vocabulary, _ = _write_gpt2_files(trained, tmp_path, names)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(TEXT) == trained.encode(TEXT)
    assert (tokenizer.end_id, tokenizer.vocab_size) == (trained.end_id, trained.vocab_size)
    assert trained.end_id not in tokenizer.encode("<|endoftext|>")
    vocabulary.write_text("[]")
    with refuses("are not a BPE"):
        load_tokenizer(tmp_path)


def test_the_end_token_of_a_hugging_face_directory(trained: bpe.BPE, tmp_path: Path) -> None:
    trained.save(tmp_path)
    settings = tmp_path / "tokenizer_config.json"
    for end in ("!", {"content": "!"}):
        settings.write_text(json.dumps({"eos_token": end}))
        assert load_tokenizer(tmp_path).end_id == trained.engine.token_to_id("!")
    settings.unlink()
    assert load_tokenizer(tmp_path).end_id == trained.end_id
    settings.write_text(json.dumps({"eos_token": "<nowhere>"}))
    with refuses("has no end token '<nowhere>'"):
        load_tokenizer(tmp_path)
    for wrong in (1.5, ["!"], {"content": 3}):
        settings.write_text(json.dumps({"eos_token": wrong}))
        with refuses(r"eos_token in .*tokenizer_config.json is .*, not a token; repair it"):
            load_tokenizer(tmp_path)
    settings.write_text("{")
    with refuses("tokenizer_config.json is not JSON"):
        load_tokenizer(tmp_path)


def test_large_vocabularies_need_wide_ids() -> None:
    assert (id_type(2**16), id_type(2**16 + 1)) == (np.uint16, np.uint32)


def test_refusals(trained: bpe.BPE, tmp_path: Path) -> None:
    with refuses("has ids 0 to 256, got 257"):
        Bytes().decode([1, 257])
    with refuses("has ids 0 to 289, got -1"):
        trained.decode([-1])
    with refuses("holds no tokenizer; expected keysift_tokenizer.json"):
        load_tokenizer(tmp_path)
    with refuses("'bpe:300' is trained on a corpus"):
        find_tokenizer("bpe:300")
    with refuses("needs 256 bytes and an end token, .* got vocab_size 256"):
        bpe.train([TEXT], vocab_size=256)
    (tmp_path / "tokenizer.json").write_text("{}")
    with refuses("is not a tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / MARKER).write_text("{")
    with refuses("is not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / MARKER).write_text('{"tokenizer": "words"}')
    with refuses("must contain {'tokenizer': 'bytes'} or name the symbols of a task, got {'tokenizer': 'words'}"):
        load_tokenizer(tmp_path)


@cache
def _small() -> bpe.BPE:
    """A tokenizer with a token for two newlines. A document cut in the wrong place would contain it."""
    tokenizer = bpe.train([TEXT + "a\n\n\na\n\n\n\na  a\n" * 900], vocab_size=300)
    assert len(tokenizer.encode("\n\n")) == 1
    assert len(tokenizer.encode("a\n\na")) == 4
    return tokenizer


def _write_gpt2_files(trained: bpe.BPE, folder: Path, names: tuple[str, str] = bpe.PAIRS[0]) -> tuple[Path, Path]:
    state = json.loads(trained.engine.to_str())
    vocabulary = {**state["model"]["vocab"], bpe.END: trained.end_id}
    (folder / names[0]).write_text(json.dumps(vocabulary))
    pairs = [" ".join(pair) for pair in state["model"]["merges"]]
    (folder / names[1]).write_text("\n".join(["#version: 0.2", *pairs]) + "\n")
    return folder / names[0], folder / names[1]
