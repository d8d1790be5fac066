"""The words of a task, there and back."""

import json
from pathlib import Path

import pytest

from keysift.data.recall import Recall
from keysift.data.shards import prepare
from keysift.data.symbols import Symbols
from keysift.data.tokenizer import MARKER, find_tokenizer, load_tokenizer, save_tokenizer
from tests.refusals import refuses

ONE = Recall(letters=28, values=3)
TWO = Recall(hops=2, letters=8, values=8, length=32, queries=4)


@pytest.mark.parametrize("task", [ONE, TWO], ids=["one hop", "two hops"])
def test_a_row_as_text_and_back(task: Recall, tmp_path: Path) -> None:
    tokenizer = task.tokenizer
    assert tokenizer.vocab_size == task.vocab_size + 1, "one more ends a text"
    assert len(set(tokenizer.words)) == task.vocab_size
    tokens, _ = task.row(0)
    text = tokenizer.decode(tokens.tolist())
    assert tokenizer.encode(text) == tokens.tolist() == tokenizer.encode_array(text).tolist()
    decoder = tokenizer.decoder()
    assert "".join(decoder.add(int(token)) for token in tokens) == text
    save_tokenizer(tokenizer, tmp_path)
    assert load_tokenizer(tmp_path).hash == find_tokenizer(tokenizer.name).hash == tokenizer.hash
    assert tokenizer.decode([tokenizer.end_id]) == ""


def test_words_say_what_they_mean() -> None:
    tokens, targets = ONE.row(0)
    *context, _ = (words := ONE.tokenizer.decode(tokens.tolist()).split())
    answers = {
        word[:-1]: ONE.tokenizer.decode([int(target)]).strip()
        for word, target in zip(words, targets, strict=True)
        if "?" in word
    }
    assert all(f"{letter}={value}" in context for letter, value in answers.items())
    assert ONE.tokenizer.words[27 * 3] == "B1=0"


def test_refusals(tmp_path: Path) -> None:
    with refuses("'A=9' is not a word of recall:hops=1,letters=28,values=3; did you mean"):
        ONE.tokenizer.encode("A=0 A=9")
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
    with refuses("no corpus is built of it"):
        prepare("recall")
    for said in ({"tokenizer": "other"}, {"tokenizer": 1}, []):
        (tmp_path / MARKER).write_text(json.dumps(said))
        with refuses("or name the symbols of a task"):
            load_tokenizer(tmp_path)
