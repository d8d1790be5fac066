"""Texts to evaluate on: the first tokens of a source, or its long documents. Recall sources give one row."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keysift.core.errors import DataError, RangeError
from keysift.data.documents import Document, Source
from keysift.data.sources import find_source
from keysift.data.tasks.recall import FIRST_VALIDATION_ROW
from keysift.data.tokenizers.base import Tokenizer
from keysift.evaluate.retrieval_tasks import recall_task

Ids = npt.NDArray[np.int64]


class FirstTokens(NamedTuple):
    """The first tokens of a source.

    ids         token ids; documents are separated by the end token, and each starts with the begin tokens
    is_text     whether a token encodes text: False for begin and end tokens, which are context but not scored
    text_bytes  bytes that all tokens but the first decode to
    """

    ids: Ids
    is_text: npt.NDArray[np.bool_]
    text_bytes: int


def first_tokens(spec: str, tokenizer: Tokenizer, tokens: int) -> FirstTokens:
    """The first tokens of a source, with the begin and end tokens between documents."""
    if tokens < 2:
        raise RangeError(f"a text needs at least 2 tokens for one of them to be predicted, got {tokens}")
    if spec.partition(":")[0] == "recall":
        return _recall_row(tokenizer, tokens)
    ids: list[int] = []
    is_text: list[bool] = []
    for document in whole_documents(find_source(spec)):
        separators = (tokenizer.end_id, *tokenizer.prefix_ids) if ids else tokenizer.prefix_ids
        encoded = tokenizer.encode_array(document.text).tolist()
        ids += [*separators, *encoded]
        is_text += [False] * len(separators) + [True] * len(encoded)
        if len(ids) >= tokens:
            break
    if not any(is_text[1:tokens]):
        raise DataError(f"{spec} has fewer than 2 tokens; give a longer text")
    return _first_tokens(tokenizer, np.array(ids[:tokens], np.int64), np.array(is_text[:tokens]))


def _recall_row(tokenizer: Tokenizer, tokens: int) -> FirstTokens:
    """One validation row of the recall task that the tokenizer encodes."""
    task = recall_task(tokenizer, length=tokens)
    ids = task.row(FIRST_VALIDATION_ROW)[0]
    return _first_tokens(tokenizer, ids, np.ones(len(ids), np.bool_))


def _first_tokens(tokenizer: Tokenizer, ids: Ids, is_text: npt.NDArray[np.bool_]) -> FirstTokens:
    return FirstTokens(ids, is_text, max(1, len(tokenizer.decode(ids[1:].tolist()).encode())))


def long_documents(spec: str, tokenizer: Tokenizer, length: int, most: int) -> Iterator[Ids]:
    """The first documents of more than `length` tokens.

    A token is at least one byte, so texts of fewer bytes are skipped without tokenizing them.
    """
    texts = (document.text for document in whole_documents(find_source(spec)))
    ids = (
        np.array([*tokenizer.prefix_ids, *tokenizer.encode_array(text)], np.int64)
        for text in texts
        if len(text.encode()) > length
    )
    return itertools.islice((document for document in ids if len(document) > length), most)


def whole_documents(source: Source) -> Iterator[Document]:
    """The documents of a source, with sections of the same file (name#0, name#1, ...) joined again."""
    for name, sections in itertools.groupby(source.documents(), key=_file_of):
        yield Document(name, "".join(section.text for section in sections))


def _file_of(document: Document) -> str:
    file, _, number = document.name.rpartition("#")
    return file if file and number.isdigit() else document.name
