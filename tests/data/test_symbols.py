"""Tokenizers of generated tasks: words to ids and back."""

import json
from pathlib import Path

import pytest

from keysift.data.shards import prepare
from keysift.data.tasks.recall import Recall
from keysift.data.tokenizers.base import MARKER
from keysift.data.tokenizers.load import find_tokenizer, load_tokenizer, save_tokenizer
from keysift.data.tokenizers.symbols import Symbols
from tests.refusals import refuses

ONE_HOP = Recall(letters=28, values=3)
TWO_HOPS = Recall(hops=2, letters=8, values=8, length=32, queries=4)


@pytest.mark.parametrize("task", [ONE_HOP, TWO_HOPS], ids=["one hop", "two hops"])
def test_a_row_survives_decoding_and_encoding(task: Recall, tmp_path: Path) -> None:
    tokenizer = task.tokenizer
    assert tokenizer.vocab_size == task.vocab_size + 1, "one id more, for the end of a text"
    assert len(set(tokenizer.words)) == task.vocab_size
    tokens, _ = task.row(0)
    text = tokenizer.decode(tokens.tolist())
    assert tokenizer.encode(text) == tokens.tolist() == tokenizer.encode_array(text).tolist()
    decoder = tokenizer.decoder()
    assert "".join(decoder.add(int(token)) for token in tokens) == text
    save_tokenizer(tokenizer, tmp_path)
    assert load_tokenizer(tmp_path).hash == find_tokenizer(tokenizer.name).hash == tokenizer.hash
    assert tokenizer.decode([tokenizer.end_id]) == ""


def test_words_name_letters_and_values() -> None:
    tokens, targets = ONE_HOP.row(0)
    *context, _ = (words := ONE_HOP.tokenizer.decode(tokens.tolist()).split())
    answers = {
        word[:-1]: ONE_HOP.tokenizer.decode([int(target)]).strip()
        for word, target in zip(words, targets, strict=True)
        if "?" in word
    }
    assert all(f"{letter}={value}" in context for letter, value in answers.items())
    assert ONE_HOP.tokenizer.words[27 * 3] == "B1=0"


def test_refusals(tmp_path: Path) -> None:
    with refuses("'A=9' is not a word of recall:hops=1,letters=28,values=3; did you mean"):
        ONE_HOP.tokenizer.encode("A=0 A=9")
    with refuses("has ids 0 to 2, got 3"):
        Symbols("two", ("a", "b")).decode([3])
    for name in (
        "letters=8",
        "hops=3,letters=8,values=8",
        "hops=1,letters=99999999999,values=8",
        "hops=1,letters=A,values=8",
    ):
        with refuses("named recall:hops=H,letters=L,values=V"):
            find_tokenizer(f"recall:{name}")
    with refuses("cannot be built as a corpus"):
        prepare("recall")
    for content in ({"tokenizer": "other"}, {"tokenizer": 1}, []):
        (tmp_path / MARKER).write_text(json.dumps(content))
        with refuses("or name the symbols of a task"):
            load_tokenizer(tmp_path)
