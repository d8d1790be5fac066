"""From any text to batches a model can train on.

Reading order: sources (where documents come from) -> tokenizer -> shards (tokenise once) -> corpus (reopen, verify,
split) -> batches (an order that one integer resumes). abcdigits and mqar make their own documents.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keysift.data import abcdigits as abcdigits
    from keysift.data import bpe as bpe
    from keysift.data import mqar as mqar
    from keysift.data.batches import Batch as Batch
    from keysift.data.batches import Batches as Batches
    from keysift.data.corpus import Corpus as Corpus
    from keysift.data.corpus import open_corpus as open_corpus
    from keysift.data.shards import build as build
    from keysift.data.shards import prepare as prepare
    from keysift.data.sources import Document as Document
    from keysift.data.sources import find_source as find_source
    from keysift.data.tokenizer import Bytes as Bytes
    from keysift.data.tokenizer import Tokenizer as Tokenizer
    from keysift.data.tokenizer import load_tokenizer as load_tokenizer
    from keysift.data.tokenizer import save_tokenizer as save_tokenizer

_MENU = {
    "Batch": "batches",
    "Batches": "batches",
    "Bytes": "tokenizer",
    "Corpus": "corpus",
    "Document": "sources",
    "Tokenizer": "tokenizer",
    "build": "shards",
    "find_source": "sources",
    "load_tokenizer": "tokenizer",
    "open_corpus": "corpus",
    "prepare": "shards",
    "save_tokenizer": "tokenizer",
}
_MODULES = ("abcdigits", "bpe", "mqar")
__all__ = [*_MENU, *_MODULES]  # noqa: PLE0604


# Loaded when first used: the processes that tokenise must not wait for torch.
def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"keysift.data.{name}")
    if name not in _MENU:
        raise AttributeError(f"module 'keysift.data' has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(f"keysift.data.{_MENU[name]}"), name)
