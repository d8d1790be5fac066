"""Texts to measure a model on: the beginning of a source, or its long documents whole; of recall, one row."""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from keysift.core.errors import DataError, RangeError
from keysift.data.recall import HELD_OUT
from keysift.data.sources import Document, Source, find_source
from keysift.data.tokenizer import Tokenizer
from keysift.evaluate.tasks import recall_of

Ids = npt.NDArray[np.int64]


def beginning(spec: str, tokenizer: Tokenizer, tokens: int) -> tuple[Ids, int]:
    """The first tokens of a source, documents joined by the end token, and the bytes that all but the first stand
    for."""
    if tokens < 2:
        raise RangeError(f"at least 2 tokens are needed, so that one can be predicted; got {tokens}")
    if spec.partition(":")[0] == "recall":
        return _row(tokenizer, tokens)
    parts: list[Ids] = []
    held = 0
    for document in whole_documents(find_source(spec)):
        ids = (*tokenizer.begin, *tokenizer.encode_array(document.text), tokenizer.end_id)
        parts.append(np.array(ids, np.int64))
        held += len(ids)
        if held >= tokens:
            break
    joined = np.concatenate(parts)[:tokens] if parts else np.zeros(0, np.int64)
    if len(joined) < 2:
        raise DataError(f"{spec} holds fewer than 2 tokens; give a longer text")
    return joined, max(1, len(tokenizer.decode(joined[1:].tolist()).encode()))


def _row(tokenizer: Tokenizer, tokens: int) -> tuple[Ids, int]:
    """One row of the task the tokenizer is for."""
    task = recall_of(tokenizer, length=tokens)
    ids = task.row(HELD_OUT)[0]
    return ids, len(tokenizer.decode(ids[1:].tolist()).encode())


def long_documents(spec: str, tokenizer: Tokenizer, length: int, most: int) -> Iterator[Ids]:
    """The first documents of more than `length` tokens. A token is a byte at least: short texts are not tokenised."""
    texts = (document.text for document in whole_documents(find_source(spec)))
    ids = (
        np.array([*tokenizer.begin, *tokenizer.encode_array(text)], np.int64)
        for text in texts
        if len(text.encode()) > length
    )
    return itertools.islice((one for one in ids if len(one) > length), most)


def whole_documents(source: Source) -> Iterator[Document]:
    """A file that was cut into sections (name#0, name#1, ...), so that some can be held out, is one text again."""
    for name, sections in itertools.groupby(source.documents(), key=_file_of):
        yield Document(name, "".join(section.text for section in sections))


def _file_of(document: Document) -> str:
    file, _, number = document.name.rpartition("#")
    return file if file and number.isdigit() else document.name
